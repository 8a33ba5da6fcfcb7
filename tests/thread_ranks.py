"""Ranks as threads of one process: the sum over them without torch.distributed, for tests that start no processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import torch
from h3te.encoder.parallel import TensorParallel

SECONDS = 60


@dataclass(frozen=True)
class ThreadRank(TensorParallel):
    """One of `size` threads; `group` is (barrier, what each holds)."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        barrier, held = self.group
        held[self.rank] = x.float().clone()
        barrier.wait()
        total = torch.stack(held).sum(0).to(x.dtype)
        barrier.wait()
        return total


def thread_ranks(size: int) -> list[ThreadRank]:
    group = Barrier(size, timeout=SECONDS), [None] * size
    return [ThreadRank(rank, size, group) for rank in range(size)]


def on_each(encoders: list, act: Callable) -> list:
    """What `act(encoder)` gives on each rank, all at once."""
    with ThreadPoolExecutor(len(encoders)) as threads:
        return [done.result() for done in [threads.submit(act, encoder) for encoder in encoders]]
