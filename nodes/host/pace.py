"""How far a CPU may run ahead of the accelerator that it gives work to: a step or two, so that progress, Stop and the
times of an encode are those of the device.

Contract: `Pace(device)` and `step()` after each step's work was handed over; `step(settle=True)` returns when all of it
is done. The device always has the next step at hand, and so is never idle for this. On a CPU nothing is ahead.

Written without such a device at hand: it follows torch's rules for events, and is untested there.
"""

from __future__ import annotations

from collections import deque

import torch

AHEAD = 2  # steps that are handed over while one computes
DEVICES = ("cuda", "xpu")


class Pace:
    def __init__(self, device: torch.device):
        self._device = device
        self._module = torch.get_device_module(device) if device.type in DEVICES else None
        self._handed_over: deque = deque()

    def step(self, settle: bool = False) -> None:
        if self._module is None:
            return
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        self._handed_over.append(event)
        while len(self._handed_over) > (0 if settle else AHEAD):
            self._handed_over.popleft().synchronize()
