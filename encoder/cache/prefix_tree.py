"""Sequences that begin alike, as a tree: each branch holds the rows that its parent does not.

Contract: a branch follows the first `offset` rows of its parent; its `keys` (content.py) are those of its own rows.
`longest` finds where the longest common prefix with a sequence ends; `chain` lists what stands before a row.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Branch:
    """Rows of a sequence, from index `start` on. keys int64 [rows, 2]. `children` are for who keeps the tree."""

    def __init__(self, parent: Branch | None, offset: int, keys: torch.Tensor):
        self.parent, self.offset, self.keys = parent, offset, keys
        self.start: int = parent.start + offset if parent is not None else 0
        self.children: list[Branch] = []

    @property
    def rows(self) -> int:
        return len(self.keys)


def common_rows(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many rows two tables of keys [., 2] have in common before the first that differs."""
    rows = min(len(one), len(other))
    differing = (one[:rows] != other[:rows]).any(dim=1)
    return int(differing.int().argmax()) if bool(differing.any()) else rows


def longest(roots: Iterable[Branch], keys: torch.Tensor) -> tuple[Branch | None, int]:
    """(branch, index) of the longest common prefix of `keys` [S, 2] with what the tree holds: it is keys[:index], and
    its last row is one of that branch; (None, 0) for none."""
    best, end = None, 0
    waiting = list(roots)
    while waiting:
        branch = waiting.pop()
        own = common_rows(branch.keys, keys[branch.start :])
        if branch.start + own > end:
            best, end = branch, branch.start + own
        waiting += [child for child in branch.children if child.offset <= own]
    return best, end


def ending(branch: Branch | None, end: int) -> tuple[Branch | None, int]:
    """The branch, itself or one before it, that holds row end - 1, and how many of its own rows stand before `end`."""
    while branch is not None and branch.start >= end:
        branch = branch.parent
    return branch, end - branch.start if branch is not None else 0


def chain(branch: Branch | None, rows: int) -> list[tuple[Branch, int]]:
    """(branch, rows of its own) of everything up to the first `rows` of `branch`, from the root on; none is empty."""
    found = []
    while branch is not None:
        if rows:
            found.append((branch, rows))
        branch, rows = branch.parent, branch.offset
    return found[::-1]
