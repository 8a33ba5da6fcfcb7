"""Moving parts of weights to a device ahead of their use: plainly, or on a stream of an accelerator.

Contract: `copies_for(device)` has `fetch(page, parts of each leaf) -> parts on the device`, called on a thread;
`arrived(page)` and `used(page)` are called where they are computed with, before the first and after the last use.
Accelerators copy through two slots of pinned memory: a slot is filled again only when the device has finished with the
page that it served before, so that at most two pages are on the device however far ahead the CPU runs.

The stream's half was written without such a device at hand: it follows torch's rules for streams, and is untested.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from .packing import Parts

logger = logging.getLogger(__name__)

SLOTS = 2


def copies_for(device: torch.device) -> PlainCopies | StreamCopies:
    return StreamCopies(device) if device.type in ("cuda", "xpu") else PlainCopies(device)


class PlainCopies:
    """For a CPU (parts that are read are there), and devices without streams that could be used here."""

    def __init__(self, device: torch.device):
        self._device = device

    def fetch(self, page: int, leaves: Sequence[Parts]) -> list[Parts]:
        return [{name: part.to(self._device) for name, part in parts.items()} for parts in leaves]

    def arrived(self, page: int) -> None:
        pass

    def used(self, page: int) -> None:
        pass

    def release(self) -> None:
        pass


class StreamCopies:
    def __init__(self, device: torch.device):
        self._device = device
        self._module = torch.get_device_module(device)
        self._stream = self._module.Stream(device=device)
        self._pinned: list[torch.Tensor | None] = [None] * SLOTS
        self._copied: list[Any] = [None] * SLOTS  # events: the slot's copies are done
        self._done: list[Any] = [None] * SLOTS  # events: the device has computed with the slot's page
        self._pinning = True

    def fetch(self, page: int, leaves: Sequence[Parts]) -> list[Parts]:
        slot = page % SLOTS
        if self._done[slot] is not None:
            self._done[slot].synchronize()
        buffer = self._buffer(slot, sum(_room(part) for parts in leaves for part in parts.values()))
        start, moved = 0, []
        with self._module.stream(self._stream):
            for parts in leaves:
                moved.append({})
                for name, part in parts.items():
                    source = part
                    if buffer is not None:
                        source = buffer[start : start + part.nbytes].view(part.dtype).view(part.shape)
                        source.copy_(part)
                    moved[-1][name] = source.to(self._device, non_blocking=buffer is not None)
                    start += _room(part)
            self._copied[slot] = self._module.Event()
            self._copied[slot].record(self._stream)
        return moved

    def arrived(self, page: int) -> None:
        self._module.current_stream(self._device).wait_event(self._copied[page % SLOTS])

    def used(self, page: int) -> None:
        """The page's tensors go back to the copying stream's memory, which is filled again only after this event."""
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        self._done[page % SLOTS] = event

    def release(self) -> None:
        for event in self._done:
            if event is not None:
                event.synchronize()
        self._pinned = [None] * SLOTS

    def _buffer(self, slot: int, nbytes: int) -> torch.Tensor | None:
        """Pinned memory of the slot; None where the system grants none."""
        pinned = self._pinned[slot]
        if self._pinning and (pinned is None or pinned.nbytes < nbytes):
            try:
                self._pinned[slot] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                logger.warning("no pinned memory (%s): weights are copied from ordinary memory, slower.", error)
                self._pinning = False
                self._pinned = [None] * SLOTS
        return self._pinned[slot]


def _room(part: torch.Tensor) -> int:
    return -(-part.nbytes // 64) * 64
