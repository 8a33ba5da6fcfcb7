"""One needed weight as the files hold it: its format, and where its parts lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from ..packing import Packing, Part, Parts, cut
from ..packing.cutting import COLUMNS, Runs, runs_of
from ..packing.packing import Unit
from .header import TensorEntry
from .piece import piece


@dataclass(frozen=True)
class StoredWeight:
    """`format` for people ("bf16", "nvfp4", "Q4_K"); `packing` None: stored as it is used, its one part is "weight".

    `input_scale`: a vector [K] that multiplies the input of a linear before the product (AWQ's `pre_quant_scale`).
    """

    format: str
    packing: Packing | None
    parts: Mapping[str, TensorEntry]
    input_scale: TensorEntry | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        scale = 0 if self.input_scale is None else self.input_scale.nbytes
        return scale + sum(entry.nbytes for entry in self.parts.values())

    @property
    def rows(self) -> int:
        return (self.parts["weight"].shape if self.packing is None else self.packing.shape)[0]

    @property
    def parts_by_row(self) -> set[str]:
        """The parts that hold something for each row, told by the packing: files write scales in several shapes."""
        if self.packing is None:
            return set(self.parts)
        return {name for name, part in self.packing.parts.items() if part.shape[:1] == (self.rows,)}

    def cut(self, axis: int, start: int, stop: int) -> StoredWeight:
        """Rows (axis 0) or columns (axis 1) start..stop of the matrix, with those bytes of the parts that they need."""
        if self.packing is None:
            entry = self.parts["weight"]
            runs = runs_of(entry.shape, Unit(1, 1, _item(entry)), axis, start, stop)
            shape = tuple(stop - start if i == axis else n for i, n in enumerate(entry.shape))
            return replace(self, parts={"weight": piece(entry, runs, shape)})
        packing, runs = cut(self.packing, axis, start, stop)
        parts = {name: piece(entry, runs[name]) for name, entry in self.parts.items()}
        scale = self.input_scale
        if scale is not None and axis == COLUMNS:
            scale = piece(scale, Runs(start * _item(scale), (stop - start) * _item(scale)))
        return replace(self, packing=packing, parts=parts, input_scale=scale)

    def fit(self, parts: Parts, rows: int | None = None) -> Parts:
        """Tensors as read, in the types and shapes that the packing expects: files differ in [1] or [], flat or not.

        rows: how many rows of a table they hold; None for the whole.
        """
        if self.packing is None:
            return parts
        packing = self.packing if rows is None else self.packing.of_rows(rows)
        return {name: _as(parts[name], part) for name, part in packing.parts.items()}


def _item(entry: TensorEntry) -> int:
    """Bytes of one value."""
    return entry.nbytes // max(prod(entry.shape), 1)


def _as(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return (
        tensor
        if tensor.dtype == part.dtype and tensor.shape == part.shape
        else tensor.view(part.dtype).view(part.shape)
    )
