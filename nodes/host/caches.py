"""What this pack keeps in memory and on disk to encode nothing twice, and giving it back by name.

Contract: a cache registers a function that empties it and returns the bytes freed; `clear(what)` calls those meant.
"""

from __future__ import annotations

from collections.abc import Callable

ALL = "all"
PREFIXES = "prefixes"
RAM = "conditioning in RAM"
DISK = "conditioning on disk"
CHOICES = (ALL, PREFIXES, RAM, DISK)

_clearers: dict[str, Callable[[], int]] = {}


def register(name: str, clearer: Callable[[], int]) -> None:
    """name: one of `CHOICES` but "all". A later one of that name takes its place. Raises ValueError."""
    if name not in CHOICES[1:]:
        raise ValueError(f"caches: expected {' or '.join(CHOICES[1:])}, got {name!r}. Add it to CHOICES.")
    _clearers[name] = clearer


def clear(what: str) -> int:
    """Bytes freed; 0 where nothing was kept. Raises ValueError for a name that is no choice."""
    if what not in CHOICES:
        raise ValueError(f"caches: expected {' or '.join(CHOICES)}, got {what!r}. Choose one.")
    return sum(clearer() for name, clearer in list(_clearers.items()) if what in (ALL, name))
