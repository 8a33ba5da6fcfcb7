"""The weights of the next layer, fetched while the present one computes.

Contract: `with Pager(pages, device) as pager:`, a page being the modules of one layer, and `pager.turn_to(i)` before
they run. Leaves whose weights rest elsewhere (on the CPU while an accelerator computes, or in their file) then lend
what was fetched; two layers at most are held: the one in use and the one that is coming. On CUDA and the like copies
run on a stream of their own, through pinned memory where the system grants it. What resides on the device already, or
is mapped for a CPU, is not touched. Leaving the block, by an error or Stop too, drops everything that was fetched.
`lend_once`: several requests use each page in turn, and share what its leaves lend (loans.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from .copies import copies_for
from .leaf import Leaf
from .loans import Loans


class Pager:
    def __init__(self, pages: Sequence[Sequence[nn.Module]], device: torch.device, lend_once: bool = False):
        self._loans = Loans(pages if lend_once else [()] * len(pages))
        self._pages = [[leaf for m in page for leaf in m.modules() if _is_fetched(leaf, device)] for page in pages]
        self._device = device
        self._copies = copies_for(device)
        self._thread: ThreadPoolExecutor | None = None
        self._coming: tuple[int, Future[Any]] | None = None
        self._open: int | None = None

    def __enter__(self) -> Pager:
        if any(self._pages):
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
            self._start(0)
        return self

    def __exit__(self, *error: object) -> None:
        self._loans.end()
        if self._thread is None:
            return
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._close()
        self._coming = None
        self._copies.release()

    def turn_to(self, index: int) -> None:
        """Page `index` is used next: its weights are there when this returns, those of the one after it are coming."""
        self._loans.turn_to(index)
        if self._thread is None:
            return
        self._close()
        if self._coming is None or self._coming[0] != index:
            self._start(index)
        fetched = self._coming[1].result()
        self._coming = None
        self._copies.arrived(index)
        for leaf, lent in zip(self._pages[index], fetched, strict=True):
            leaf.staged[self._device] = lent
        self._open = index
        if index + 1 < len(self._pages):
            self._start(index + 1)

    def _start(self, index: int) -> None:
        self._coming = index, self._thread.submit(self._fetch, index)

    def _fetch(self, index: int) -> list[Any]:
        return self._copies.fetch(index, [leaf.rest.parts() for leaf in self._pages[index]])

    def _close(self) -> None:
        if self._open is None:
            return
        for leaf in self._pages[self._open]:
            leaf.staged.pop(self._device, None)
        self._copies.used(self._open)
        self._open = None


def _is_fetched(module: nn.Module, device: torch.device) -> bool:
    """A leaf whose weight has to come from elsewhere for each layer."""
    if not isinstance(module, Leaf) or module.rest is None or not module.weight.is_meta:
        return False
    return device.type != "cpu" or not module.rest.held
