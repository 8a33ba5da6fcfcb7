"""What this pack keeps in memory and on disk to encode nothing twice: the stores of this process, and giving them back.

Contract: every text encoder shares one store of prefixes and one of finished conditioning; what an encoder may use of
them, and how large they may be, is its `CacheSettings`, as the options node offers them. `clear(what)` gives back the
bytes freed. Prefixes live in RAM alone. Conditioning on disk lies below ComfyUI's user directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import folder_paths
import psutil

from ...encoder.cache.conditioning_store import ConditioningStore
from ...encoder.cache.prefixes import PrefixStore

ALL = "all"
PREFIXES = "prefixes"
RAM = "conditioning in RAM"
DISK = "conditioning on disk"
CHOICES = (ALL, PREFIXES, RAM, DISK)

KEPT = ("ram", "ram and disk", "off")  # where finished conditioning is kept
AUTO = -1.0  # GB of prefixes: a part of the RAM that is free
PREFIX_SHARE, CONDITIONING_SHARE = 4, 16  # parts of the RAM that is free or held by us already
MOST_CONDITIONING = 2_000_000_000
DISK_GB = 4.0
FOLDER = Path("minimax_h3_text_encoder", "conditioning")  # below ComfyUI's user directory
GB = 1_000_000_000


@dataclass(frozen=True)
class CacheSettings:
    """prefix_gb: RAM for prefixes, AUTO by what is free, 0 none; kept: one of KEPT; disk_gb: for conditioning on disk;
    exact: no prefixes, and pictures seen as the released model sees them, all in one call."""

    prefix_gb: float = AUTO
    kept: str = KEPT[0]
    disk_gb: float = DISK_GB
    exact: bool = False

    @property
    def reuses_prefixes(self) -> bool:
        return not self.exact and self.prefix_gb != 0

    @property
    def on_disk(self) -> bool:
        return self.kept == "ram and disk"

    def line(self, elsewhere: str | None = None) -> str:
        """For the loader's text. elsewhere: who keeps prefixes, where it is not this process."""
        if self.exact:
            prefixes = "no prefixes: exact"
        elif self.prefix_gb == 0:
            prefixes = "no prefixes"
        elif elsewhere is not None:
            prefixes = f"prefixes as {elsewhere} keeps them"
        else:
            prefixes = f"prefixes in up to {_prefix_budget(self) / GB:.1f} GB of RAM"
        if not self.on_disk:
            return f"caches: {prefixes}; conditioning in RAM" if self.kept == "ram" else f"caches: {prefixes}"
        used, folder = conditioning_store().disk_bytes() / GB, conditioning_folder()
        return f"caches: {prefixes}; conditioning in RAM and {used:.2f} of {self.disk_gb:g} GB on disk in {folder}"


_settings = CacheSettings()  # of the request at hand


def use(settings: CacheSettings) -> None:
    """The request that follows has these: budgets are theirs from now on."""
    global _settings
    _settings = settings


def conditioning_folder() -> Path:
    return Path(folder_paths.get_user_directory()) / FOLDER


@lru_cache(maxsize=1)
def prefix_store() -> PrefixStore:
    return PrefixStore(lambda: _prefix_budget(_settings))


def conditioning_store() -> ConditioningStore:
    return _store_in(conditioning_folder())


@lru_cache(maxsize=1)
def _store_in(folder: Path) -> ConditioningStore:
    return ConditioningStore(
        ram_budget=_conditioning_budget, folder=folder, disk_budget=lambda: int(_settings.disk_gb * GB)
    )


def _prefix_budget(settings: CacheSettings) -> int:
    if not settings.reuses_prefixes:
        return 0
    if settings.prefix_gb > 0:
        return int(settings.prefix_gb * GB)
    return (psutil.virtual_memory().available + prefix_store().nbytes) // PREFIX_SHARE


def _conditioning_budget() -> int:
    free = psutil.virtual_memory().available + conditioning_store().ram_bytes
    return min(free // CONDITIONING_SHARE, MOST_CONDITIONING)


def _clearers() -> dict[str, Callable[[], int]]:
    return {
        PREFIXES: lambda: prefix_store().clear(),
        RAM: lambda: conditioning_store().clear(ram=True, disk=False),
        DISK: lambda: conditioning_store().clear(ram=False, disk=True),
    }


def clear(what: str) -> int:
    """Bytes freed; 0 where nothing was kept. Raises ValueError for a name that is no choice."""
    if what not in CHOICES:
        raise ValueError(f"caches: expected {' or '.join(CHOICES)}, got {what!r}. Choose one.")
    return sum(clearer() for name, clearer in _clearers().items() if what in (ALL, name))
