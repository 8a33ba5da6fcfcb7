"""Where a weight rests while it is not on a compute device: in memory (mapped or read), or in its file.

Contract: `parts()` gives the named CPU tensors of one weight, `row_parts(ids)` those of some rows of a table. `Kept`
holds them; `Streamed` reads them again each time and holds nothing. Both give the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..packing import Parts
from .files import CheckpointFiles
from .stored_weight import StoredWeight


class Kept:
    held = True

    def __init__(self, stored: StoredWeight, tensors: Parts):
        self._stored, self._parts = stored, stored.fit(tensors)

    def parts(self) -> Parts:
        return self._parts

    def row_parts(self, ids: torch.Tensor) -> Parts:
        """The rows `ids` (int64 [n]) of a table; what is one for all rows (a scale) is whole."""
        by_row = self._stored.parts_by_row
        return {name: _rows(part, ids) if name in by_row else part for name, part in self._parts.items()}


class Streamed:
    """`expect()` is called before each reading of the whole: the reader then asks for what comes next."""

    held = False

    def __init__(self, stored: StoredWeight, files: CheckpointFiles, expect: Callable[[], None]):
        self._stored, self._files, self._expect = stored, files, expect

    def parts(self) -> Parts:
        self._expect()
        return self._stored.fit({name: self._files.read(entry) for name, entry in self._stored.parts.items()})

    def row_parts(self, ids: torch.Tensor) -> Parts:
        by_row, count, files = self._stored.parts_by_row, self._stored.rows, self._files
        read = {
            name: files.read_rows(entry, ids, count) if name in by_row else files.read(entry)
            for name, entry in self._stored.parts.items()
        }
        return self._stored.fit(read, rows=len(ids))


def _rows(part: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As bytes: not every type can be indexed."""
    return part.contiguous().view(torch.uint8).view(len(part), -1)[ids].view(part.dtype).view(len(ids), *part.shape[1:])
