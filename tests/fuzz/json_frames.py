"""Changing what is 8 bytes of length, JSON, and data: the form of safetensors files and of the worker's bodies.

Contract: `mutated(data, chance)` changes the JSON as a tree (values that formats trip over, keys twice or renamed,
branches moved) and keeps the length true; `framed(text, data)` builds one; `split(data)` takes it apart.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

VALUES = (
    0, 1, -1, 7, 8, 64, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, float("inf"), float("nan"), True,
    False, None, "", "a", "\x00", "\x1b[31m", "\ud800", "<b>", "a" * 600, [], {}, [0, 0], [0, 8], [8, 0], [2**62] * 9,
    "BF16", "F32", "I64", "U8", "F8_E4M3", "F4", "dtype", "shape", "data_offsets", "__metadata__", "tensor", "dict",
    "tuple", "nested", "float", "widen", "nan", "1e999",
)  # fmt: skip


def framed(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def split(data: bytes) -> tuple[bytes, bytes]:
    """(the JSON, what follows)"""
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length], data[8 + length :]


def mutated(data: bytes, chance: Random) -> bytes:
    text, rest = split(data)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return data
    try:
        changed = json.dumps(tree_mutated(tree, chance), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data
    if chance.random() < 0.1:
        rest = rest[: chance.randint(0, len(rest))] + bytes(chance.choice((0, 1, 2, 8)))
    if chance.random() < 0.05:
        changed = doubled(changed, chance)
    return framed(changed, rest)


def tree_mutated(tree: Any, chance: Random) -> Any:
    """One to three changes, at places drawn evenly."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return chance.choice(VALUES)
        holder, key = chance.choice(places)
        _change(holder, key, [*places], chance)
    return tree


def _places(node: Any):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from _places(value)


def _change(holder: Any, key: Any, places: list, chance: Random) -> None:
    kind = chance.randrange(6)
    if kind == 0:
        holder.pop(key)
    elif kind == 1 and isinstance(holder[key], int):
        holder[key] += chance.choice((-8, -1, 1, 2, 8, 4096, 2**62))
    elif kind == 2:
        other, name = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    elif kind == 3 and isinstance(holder, dict):
        holder[str(chance.choice(VALUES))[:600]] = holder.pop(key)
    elif kind == 4 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = chance.choice(VALUES)


def doubled(text: bytes, chance: Random) -> bytes:
    """A member of the outermost object twice."""
    name = chance.choice((b'"__metadata__":{},', b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'))
    return text.replace(b"{", b"{" + name, 1)
