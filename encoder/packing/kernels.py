"""Other people's kernels in the place of our `rows`, where a host has some and found that they give the same numbers.

Contract: inside `with use_kernels(kernels):` `unpack` takes the first kernel that is for the packing's class, for the
device's type, and says that it serves this packing; else the packing's own `rows`. Nothing is registered for good: what
one encoder uses does not reach another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .packing import Packing, Parts


@dataclass(frozen=True)
class Kernel:
    """`rows(packing, parts, start, stop)`: as `Packing.rows`; `start` is a multiple of `row_step`."""

    packing: type[Packing]
    device_type: str
    rows: Callable[[Packing, Parts, int, int], torch.Tensor]
    serves: Callable[[Packing], bool]
    row_step: int = 1

    def fits(self, packing: Packing, device: torch.device) -> bool:
        return type(packing) is self.packing and device.type == self.device_type and self.serves(packing)


_in_use: ContextVar[tuple[Kernel, ...]] = ContextVar("kernels of packed weights", default=())


@contextmanager
def use_kernels(kernels: Sequence[Kernel]) -> Generator[None, None, None]:
    token = _in_use.set(tuple(kernels))
    try:
        yield
    finally:
        _in_use.reset(token)


def kernel_for(packing: Packing, device: torch.device) -> Kernel | None:
    """The kernel in use for such a weight there; None for the packing's own `rows`."""
    return next((kernel for kernel in _in_use.get() if kernel.fits(packing, device)), None)
