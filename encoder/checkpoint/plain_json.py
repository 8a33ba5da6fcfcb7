"""JSON of strangers: bounded before it is parsed, because a few bytes of text become a hundred in memory.

Contract: `parsed(text)` is `json.loads` for what real files hold; anything else is a ValueError, never a RecursionError
or gigabytes. `unique`: a key that stands twice in one object is refused, where other readers may believe the other one.
"""

from __future__ import annotations

import json

MOST_VALUES = 1_000_000  # a vocabulary with its merges has half as many; headers of tensors have thousands
MOST_BYTES = 16_000_000  # of a JSON file, and of JSON within a text; real configs and indexes have kilobytes


def parsed(text: bytes | str, *, unique: bool = False) -> object:
    """text: UTF-8 where it is bytes."""
    commas = text.count(b",") if isinstance(text, bytes) else text.count(",")
    if commas > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=unique_keys if unique else None)
    except RecursionError as error:
        raise ValueError("containers too deep in each other") from error


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these members. Raises ValueError for a key that stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i]) if len(keys) < 1000 else "one of many"
        raise ValueError(f"the key {twice[:100]!r} twice")
    return found
