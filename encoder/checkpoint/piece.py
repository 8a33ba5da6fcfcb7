"""A piece of a stored tensor, as an entry of its own: what a rank of several reads of it.

Contract: `piece(entry, runs)` is the entry of those runs of its bytes. A single run is bytes like any other tensor's,
and can be mapped; several runs are read one by one and lie next to each other in memory.
"""

from __future__ import annotations

from dataclasses import replace

from ..packing.cutting import Runs
from .header import DTYPE_BYTES, TensorEntry


def piece(entry: TensorEntry, runs: Runs, shape: tuple[int, ...] | None = None) -> TensorEntry:
    """shape None: flat, for who knows the shape (a packing); a piece that is the whole stays as it is."""
    start, width, count, step = runs
    if width == step:  # runs without gaps
        width, count = width * count, 1
    nbytes = width * count
    if nbytes == entry.nbytes:
        return entry
    shape = shape or (nbytes // DTYPE_BYTES.get(entry.dtype, 1),)
    count, step = (count, step) if count > 1 else (1, 0)
    return replace(entry, shape=shape, nbytes=nbytes, offset=entry.offset + start, runs=count, step=step)
