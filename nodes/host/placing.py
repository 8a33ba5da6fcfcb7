"""Progress and Stop while ComfyUI's model patcher patches weights and moves them to a device.

Contract: inside `with placing(progress):` the patcher (patcher.py) says which weights it is about to move or has
patched, and the leaves (leaf.py) say which have arrived. `progress` is asked after each, and raises on Stop. Moving
back is neither counted nor stopped: that is how a stopped load is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from ...encoder.progress import PLACING, Progress
from .stop import heed_stop

PATCHING = "patching weights"  # with LoRA; counted in weights
_watching: ContextVar[Placing | None] = ContextVar("placing", default=None)


class Placing:
    """device: where weights go. patches: how many of them get a LoRA at most."""

    def __init__(self, progress: Progress, device: torch.device, patches: int):
        self._progress, self._device, self._patches = progress, device, patches
        self._expected = self._arrived = self._patched = 0

    def planned(self, weight: torch.Tensor, patched: bool) -> None:
        """It stays on the device: it was patched there just now, or will be moved there after all were planned."""
        if weight.device != self._device:
            self._expected += weight.nbytes
        if patched:
            self._patched += 1
            self._progress(self._patched, self._patches, PATCHING)
        heed_stop()

    def moved(self, weight: torch.Tensor) -> None:
        if weight.device == self._device:
            self._arrived += weight.nbytes
            self._expected = max(self._expected, self._arrived)
            self._progress(self._arrived, self._expected, PLACING)


@contextmanager
def placing(progress: Progress, device: torch.device, patches: int) -> Iterator[None]:
    token = _watching.set(Placing(progress, device, patches))
    try:
        yield
    finally:
        _watching.reset(token)


def watching() -> Placing | None:
    """Whoever wants to know, in this thread."""
    return _watching.get()
