"""What of several requests has to be computed: to each what is neither kept nor computed for one before it.

Contract: `plan_segments(keys, blocks, found, room)` takes each request's keys (cache/content.py), vision blocks and
longest kept prefix. A `Segment` is the rows of one request from where its prefix ends; that prefix may be kept nodes,
segments of requests before it, or both. It never ends inside a vision block. Less than MIN_REUSED tokens are not worth
the seam, unless they are the whole request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from .cache.prefix_tree import Branch, chain, common_rows, ending
from .placement import Block

MIN_REUSED = 32  # the start of a template, or a few equal words, do not split a prompt


class Segment(Branch):
    """Rows [start, stop) of a request, computed in this pass. blocks: the vision blocks among them."""

    def __init__(self, parent: Branch | None, offset: int, keys: torch.Tensor, blocks: Sequence[Block], request: int):
        super().__init__(parent, offset, keys)
        self.blocks, self.request = [block for block in blocks if block.start >= self.start], request
        self.keep_rows = 0  # how many of its rows are kept afterwards
        self.followed = False  # segments after it stand on its rows


@dataclass(frozen=True, eq=False)
class Whole:
    """A request as (branch, rows of its own) in order. reused: tokens that are not computed for it."""

    parts: Sequence[tuple[Branch, int]]
    reused: int


@dataclass(eq=False)
class SegmentPlan:
    segments: list[Segment] = field(default_factory=list)
    wholes: list[Whole] = field(default_factory=list)


def plan_segments(
    keys: Sequence[torch.Tensor], blocks: Sequence[Sequence[Block]], found: Sequence[tuple[Branch | None, int]]
) -> SegmentPlan:
    """keys int64 [S, 2], blocks and (node, index) of the longest kept prefix of each request."""
    plan, ends = SegmentPlan(), []
    for i, own in enumerate(keys):
        branch, end = _best(own, found[i], zip(keys, ends, strict=False))
        end = usable(end, blocks[i], len(own))
        parent, offset = ending(branch, end)
        if end < len(own):
            segment = Segment(parent, offset, own[end:], blocks[i], i)
            plan.segments.append(segment)
            parent, offset = segment, segment.rows
        ends.append(parent)
        plan.wholes.append(Whole(chain(parent, offset), end))
    _mark_followed(plan)
    return plan


def usable(end: int, blocks: Sequence[Block], length: int) -> int:
    """How many of `end` equal tokens are reused, of a request of `length`."""
    end = min([end, *(block.start for block in blocks if block.start < end < block.stop)])
    return end if end >= MIN_REUSED or end == length else 0


def _best(
    own: torch.Tensor, kept: tuple[Branch | None, int], before: Iterable[tuple[torch.Tensor, Branch | None]]
) -> tuple[Branch | None, int]:
    """The longest prefix among the kept ones and the requests before: (keys, branch of its last row)."""
    best = kept
    for keys, branch in before:
        rows = common_rows(keys, own)
        if rows > best[1]:
            best = branch, rows
    return best


def _mark_followed(plan: SegmentPlan) -> None:
    for segment in plan.segments:
        for before, _ in chain(segment.parent, segment.offset):
            if isinstance(before, Segment):
                before.followed = True


def share_room(segments: Sequence[Segment], blocks: Sequence[Sequence[Block]], room: int, row_bytes: int) -> int:
    """Say of each segment how many of its first rows are kept, so that all together take at most `room` bytes; returns
    what is left. A cut never falls into a vision block."""
    for segment in segments:
        parent = segment.parent
        hangs = not isinstance(parent, Segment) or parent.keep_rows >= segment.offset
        rows = min(segment.rows, room // row_bytes) if hangs else 0
        if rows < segment.rows:
            rows = max(0, usable(segment.start + rows, blocks[segment.request], -1) - segment.start)
        segment.keep_rows = rows
        room -= rows * row_bytes
    return room
