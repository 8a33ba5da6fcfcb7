"""Who computes what a CLIP is asked for: this process, a worker, or nobody where the store alone answers.

Contract: `computing(patcher, backend, unload, cache)` -> a Computing for one call, whatever the encoder is; the CLIP
and the nodes' texts see no difference. `loaded(batches)` holds everything ready for its length, and leaves a `run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .cache_only import CacheOnly
from .local_computing import LocalComputing
from .remote_computing import RemoteComputing
from .request_cache import RequestCache
from .tokens import TokenBatch


class Run(Protocol):
    """What a node tells about a request that was computed."""

    seconds: Mapping[str, float]  # of the parts that took time: "load", "vision", "decoder"; empty where unknown

    def lines(self) -> list[str]:
        """Where, with which memory, how."""

    def notes(self) -> list[str]:
        """What should be seen first: memory that was short, and its like."""


class Computing(Protocol):
    run: Run | None  # of the last `loaded` that came to its end

    def load(self, batches: Sequence[TokenBatch]) -> None:
        """Make ready for these requests, or raise what stands against it."""

    def loaded(self, batches: Sequence[TokenBatch]) -> AbstractContextManager[None]:
        """`load`, for as long as requests of these are encoded."""

    def encode(
        self, batches: Sequence[TokenBatch], cache: RequestCache | None, show: bool = True
    ) -> list[dict[str, Any]]:
        """The `result` of each. cache: keeps them, None while hooks swap weights; show: a progress bar, and a
        line on the node."""


def computing(patcher, backend: str, unload: bool, cache: RequestCache) -> Computing:
    """backend, unload: as the options node offers them; cache: of the same call."""
    if patcher.model.recorded is not None:
        return CacheOnly(cache.identity)
    if patcher.model.remote is not None:
        return RemoteComputing(patcher, unload)
    return LocalComputing(patcher, backend, unload, cache)
