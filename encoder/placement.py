"""Where vision features stand in the token sequence, and the M-RoPE positions that follow from it.

Contract: pads of one vision block form one run whose length equals rows * columns / 4 of its grid; a grid of several
temporal steps is several blocks, each with its own run. Text advances all three axes by one; a block at position p
spans (p, p + row, p + column) over the merged grid, and the next position is p + max(rows, columns) of that grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .tokens import IMAGE_PAD, VIDEO_PAD
from .vision import Grid


@dataclass(frozen=True)
class Block:
    """One run of pads: sequence indices [start, stop), the merged (rows, columns) and its offset in the features."""

    start: int
    stop: int
    rows: int
    columns: int
    modality: str
    offset: int


@dataclass(frozen=True)
class Placement:
    """A block together with the DeepStack features of its modality, one [M, D] per level. The merged ones are in the
    sequence by then, and are not held through the layers."""

    start: int
    stop: int
    offset: int
    deepstack: tuple[torch.Tensor, ...]

    def rows(self, table: torch.Tensor) -> torch.Tensor:
        """This block's rows [stop - start, D] of a feature table [M, D]."""
        return table[self.offset : self.offset + self.stop - self.start]


def find_blocks(ids: torch.Tensor, image_grids: Sequence[Grid], video_grids: Sequence[Grid], merge: int) -> list[Block]:
    """ids int64 [S] -> blocks in sequence order. Raises ValueError with both numbers where pads and grids disagree."""
    blocks = []
    for modality, pad, grids in (("image", IMAGE_PAD, image_grids), ("video", VIDEO_PAD, video_grids)):
        where = torch.nonzero(ids == pad)[:, 0].tolist()
        sizes = [(h // merge, w // merge) for t, h, w in grids for _ in range(t)]
        wanted = sum(rows * columns for rows, columns in sizes)
        if wanted != len(where):
            raise ValueError(
                f"encode_ids: expected as many {modality} pads as features, got {len(where)} pads and {wanted} "
                f"features. Pass the {modality} grids that belong to these ids."
            )
        blocks += _blocks_of(modality, where, sizes)
    return sorted(blocks, key=lambda block: block.start)


def _blocks_of(modality: str, where: list[int], sizes: list[tuple[int, int]]) -> list[Block]:
    """where: indices of this modality's pads; sizes: merged (rows, columns) of each block."""
    blocks, offset = [], 0
    for rows, columns in sizes:
        start, count = where[offset], rows * columns
        run = _run_length(where, offset)
        if run != count:
            raise ValueError(
                f"encode_ids: expected {count} {modality} pads in one run from index {start} (grid {rows} x {columns} "
                f"after merging), got {run}. Put each vision block's pads together, between its start and end markers, "
                "in the order of the grids."
            )
        blocks.append(Block(start, start + count, rows, columns, modality, offset))
        offset += count
    return blocks


def _run_length(where: list[int], first: int) -> int:
    """How many consecutive indices follow from where[first] on, itself included."""
    last = first
    while last + 1 < len(where) and where[last + 1] == where[last] + 1:
        last += 1
    return last + 1 - first


def position_ids(length: int, blocks: Sequence[Block]) -> torch.Tensor:
    """M-RoPE positions int64 [3, S] (time, row, column) for `length` tokens with these vision blocks."""
    parts, done, position = [], 0, 0
    for block in blocks:
        text = block.start - done
        parts.append(_text_positions(position, text))
        position += text
        row = torch.arange(block.rows).repeat_interleave(block.columns)
        column = torch.arange(block.columns).repeat(block.rows)
        parts.append(torch.stack((torch.zeros_like(row), row, column)) + position)
        position += max(block.rows, block.columns)
        done = block.stop
    parts.append(_text_positions(position, length - done))
    return torch.cat(parts, dim=1)


def _text_positions(start: int, count: int) -> torch.Tensor:
    return torch.arange(start, start + count).expand(3, -1)
