"""Rows or columns of a packed weight: the bytes of its parts that they need, and the packing of those bytes alone.

Contract: `cut(packing, axis, start, stop)` -> (packing, runs of each part). What is stored together (a rotated group, a
block with one scale, a tile of scales) is never torn: where a cut falls inside, the whole of it is kept, and the
surplus is trimmed after unpacking (`Trimmed`); a packing without `units` is kept whole and trimmed. Either way the
matrix is those rows or columns of the whole one, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import NamedTuple

import torch

from .packing import Packing, Part, Parts, Unit

ROWS, COLUMNS = 0, 1


class Runs(NamedTuple):
    """`count` runs of `width` bytes, their beginnings `step` bytes apart, the first at byte `start`."""

    start: int
    width: int
    count: int = 1
    step: int = 0


@dataclass(frozen=True)
class Trimmed(Packing):
    """`shape` of the larger `inner`: from row (axis 0) or column (axis 1) `skip` on."""

    inner: Packing | None = None
    axis: int = ROWS
    skip: int = 0

    rows_apart = False

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def parts(self) -> dict[str, Part]:
        return self.inner.parts

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        if self.axis == ROWS:
            start, stop = start + self.skip, stop + self.skip
        step = self.inner.row_step
        first, last = start // step * step, min(-(-stop // step) * step, self.inner.shape[0])
        values = self.inner.rows(parts, first, last)[start - first : stop - first]
        return values if self.axis == ROWS else values[:, self.skip : self.skip + self.shape[1]]


def cut(packing: Packing, axis: int, start: int, stop: int) -> tuple[Packing, dict[str, Runs]]:
    """Rows (axis 0) or columns (axis 1) start..stop of a matrix."""
    shape = tuple(stop - start if i == axis else n for i, n in enumerate(packing.shape))
    units = packing.units
    if not units:
        return Trimmed(shape, packing, axis, start), {name: Runs(0, p.nbytes) for name, p in packing.parts.items()}
    grain = lcm(packing.grain[axis], *(unit[axis] for unit in units.values() if unit[axis]))
    begin, end = start // grain * grain, min(-(-stop // grain) * grain, packing.shape[axis])
    inner = packing.of_rows(end - begin) if axis == ROWS else replace(packing, shape=(shape[0], end - begin))
    runs = {name: runs_of(packing.shape, unit, axis, begin, end) for name, unit in units.items()}
    return (inner if (begin, end) == (start, stop) else Trimmed(shape, inner, axis, start - begin)), runs


def runs_of(shape: tuple[int, ...], unit: Unit, axis: int, start: int, stop: int) -> Runs:
    """Where a part of such units, stored row after row for a matrix of `shape`, holds start..stop of `axis`."""
    rows, columns = (-(-size // step) if step else 1 for size, step in zip(shape, unit[:2], strict=True))
    row = columns * unit.nbytes
    if not unit[axis]:
        return Runs(0, rows * row)
    first, count = start // unit[axis], -(-stop // unit[axis]) - start // unit[axis]
    if axis == ROWS:
        return Runs(first * row, count * row)
    return Runs(first * unit.nbytes, count * unit.nbytes, rows, row)
