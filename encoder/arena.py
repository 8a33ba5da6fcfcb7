"""One piece of memory that the large results of a layer lie in, the same one from layer to layer.

Contract: `Arena(device)` for one pass, `NO_ARENA` where a layer is called alone; `view(shape, dtype, start)` gives
numbers that begin at byte `start` and hold whatever was there. Who computes with it says where results lie, so that
none overwrites what is still needed; a result that outlives its layer must not lie here. On a CPU only: memory of this
size comes from the system anew each time, page by page, which takes a tenth of an encode. Accelerators keep freed
memory themselves: there `is_on` is False, `view` gives None, and results are made where the allocator says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

DEVICES = ("cpu",)


class Arena:
    def __init__(self, device: torch.device | None = None):
        self.is_on = device is not None and device.type in DEVICES
        self._device = device
        self._memory: torch.Tensor | None = None

    def view(self, shape: Sequence[int], dtype: torch.dtype, start: int = 0) -> torch.Tensor | None:
        """`start` in bytes, a multiple of the size of a number."""
        if not self.is_on:
            return None
        stop = start + prod(shape) * dtype.itemsize
        if self._memory is None or self._memory.numel() < stop:
            self._memory = torch.empty(stop, dtype=torch.uint8, device=self._device)  # views keep the old one
        return self._memory[start:stop].view(dtype).view(shape)

    def reserve(self, nbytes: int) -> None:
        """Have so much at once, rather than grow; nothing where it is off."""
        self.view((nbytes,), torch.uint8)

    def overwritten(self, x: torch.Tensor) -> torch.Tensor | None:
        """x as the place of a result, where results are placed: nobody needs what it holds."""
        return x if self.is_on else None

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x + y in the place of x, which outlives the layer; y may lie here."""
        return x.add_(y) if self.is_on else y.add_(x)


NO_ARENA = Arena()
