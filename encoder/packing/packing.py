"""How one weight is stored packed: named parts (codes, scales) of fixed types and shapes, and the matrix they stand
for.

Contract: a `Packing` is frozen and holds no tensors. `unpack(packing, parts, dtype)` computes the matrix in float32, in
chunks of rows, and casts each chunk once: beside the result it needs a few megabytes. `join` lays the parts into one
uint8 blob, so that whoever moves weights about (ComfyUI counts and moves parameters) sees one parameter of its packed
size, and `split` finds them again as views. Subclasses say what the parts are and turn a run of rows into float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, NamedTuple

import torch

from .kernels import kernel_for

ALIGNMENT = 16  # bytes: every part of a blob can be viewed in its own type
CHUNK_ELEMENTS = 1 << 20  # float32 elements of one chunk: small enough to stay in a CPU's cache

Parts = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Part:
    """Type and shape of one part; `nbytes` is what it takes."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Unit(NamedTuple):
    """The least piece of a part: it belongs to so many rows and columns of the matrix (0: to all), in so many bytes."""

    rows: int
    columns: int
    nbytes: int


@dataclass(frozen=True)
class Packing(ABC):
    """`shape`: of the matrix that the parts stand for, [N out, K in] for a linear."""

    shape: tuple[int, ...]

    name: ClassVar[str] = ""  # of the format, for people
    row_step: ClassVar[int] = 1  # chunks begin at multiples of this many rows
    rows_apart: ClassVar[bool] = True  # a row needs nothing of its neighbours': a table of it can be looked up
    grain: ClassVar[tuple[int, int]] = (1, 1)  # rows and columns that belong together beyond the units

    @property
    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """What is stored, by the name that stands behind the layer's name in the file ("weight", "weight_scale")."""

    @abstractmethod
    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop as float32 [stop - start, K] on the device of `parts`."""

    @property
    def units(self) -> dict[str, Unit]:
        """The unit of each part, laid out row after row, where rows and columns can be cut out (cutting.py)."""
        return {}

    def of_rows(self, count: int) -> Packing:
        """The packing of `count` rows taken out of a table together with their parts; any rows where `rows_apart`, else
        runs of whole units."""
        return replace(self, shape=(count, *self.shape[1:]))

    @property
    def nbytes(self) -> int:
        """Bytes of the blob."""
        return _layout(self)[1]


def unpack(packing: Packing, parts: Parts, dtype: torch.dtype) -> torch.Tensor:
    """The whole matrix in `dtype`, on the device of `parts`."""
    device = next(iter(parts.values())).device
    kernel = kernel_for(packing, device)
    rows = type(packing).rows if kernel is None else kernel.rows
    matrix = torch.empty(packing.shape, dtype=dtype, device=device)
    flat = matrix.view(packing.shape[0], -1)
    height, width = flat.shape
    for start, stop in _chunks(height, width, packing.row_step if kernel is None else kernel.row_step):
        flat[start:stop] = rows(packing, parts, start, stop)
    return matrix


def _chunks(count: int, width: int, step: int) -> Iterator[tuple[int, int]]:
    size = max(CHUNK_ELEMENTS // max(width, 1) // step, 1) * step
    for start in range(0, count, size):
        yield start, min(start + size, count)


def join(packing: Packing, parts: Parts, device: torch.device) -> torch.Tensor:
    """One uint8 blob [packing.nbytes] on `device` that holds all parts."""
    offsets, total = _layout(packing)
    blob = torch.zeros(total, dtype=torch.uint8, device=device)
    for name, part in packing.parts.items():
        stored = parts[name].contiguous().view(-1).view(torch.uint8)
        blob[offsets[name] : offsets[name] + part.nbytes].copy_(stored)
    return blob


def split(packing: Packing, blob: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts of a blob as views of it."""
    offsets, _ = _layout(packing)
    return {
        name: blob[offsets[name] : offsets[name] + part.nbytes].view(part.dtype).view(part.shape)
        for name, part in packing.parts.items()
    }


def _layout(packing: Packing) -> tuple[dict[str, int], int]:
    """({part: offset}, bytes in all)."""
    offsets, end = {}, 0
    for name, part in packing.parts.items():
        offsets[name] = end
        end += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end
