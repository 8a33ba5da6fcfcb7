"""Element-wise work in blocks of rows that stay in a CPU's cache: the same numbers, without passes over main memory.

Contract: every row is computed as if alone, so that blocks change no bit. Accelerators get far larger blocks: there a
launch costs more than a pass over memory, and what blocks bound is the float32 copies on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK_BYTES = 1 << 19  # of float32: what one operation reads and writes fits a core's own cache
DEVICE_BLOCK_BYTES = 1 << 26


def row_blocks(x: torch.Tensor) -> Iterator[slice]:
    """Slices of the first axis of x [N, ...] that cover it, each of about BLOCK_BYTES."""
    block = BLOCK_BYTES if x.device.type == "cpu" else DEVICE_BLOCK_BYTES
    step = max(1, block // (4 * max(1, x[0].numel()))) if len(x) else 1
    for start in range(0, len(x), step):
        yield slice(start, start + step)
