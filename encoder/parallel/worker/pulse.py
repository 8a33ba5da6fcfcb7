"""Signs of life: each rank counts up in the store of torchrun, and rank 0 sees who stops.

Contract: `Pulse(connect, rank, size, timeout)`, `start(on_end)`. A rank that ends in order says why first (`note`); one
that is killed says nothing and its count stands still: `lost()` tells them apart, when something ended, in about
STILL_SECONDS. `on_end(text)` is called once, from a thread, when a rank says that it failed, is silent for `timeout`
seconds, or the store is gone (torchrun was killed: nobody would end these processes). The other ranks watch rank 0
alone. Source: torch.distributed.TCPStore, which torchrun keeps outside of the ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BEAT_SECONDS = 0.5
STILL_SECONDS = 2.0
CONNECT_SECONDS = 10
FAILED = "failed: "
LOST_CONTACT = "lost contact"  # to another rank: what came of a loss, not the loss
TORCHRUN_GONE = "torchrun cannot be reached any more"
_MISSES = 2  # one that breaks, and one that finds nobody for CONNECT_SECONDS


@dataclass
class _Peer:
    count: int
    since: float
    note: str = ""


def store_of(environment: Mapping[str, str] = os.environ):
    """A connection of its own to the store of this run."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    libuv = environment.get("USE_LIBUV", "1") == "1"
    return TCPStore(address, port, None, False, timedelta(seconds=CONNECT_SECONDS), use_libuv=libuv)


class Pulse:
    def __init__(self, connect: Callable[[], Any], rank: int, size: int, timeout: float):
        self.rank, self.size, self._timeout = rank, size, timeout
        self._connect, self._notes = connect, connect()
        now = time.monotonic()
        watched = range(1, size) if rank == 0 else (0,)
        self._peers = {peer: _Peer(0, now) for peer in watched}
        self._on_end: Callable[[str], None] | None = None

    def start(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        threading.Thread(target=self._run, name="h3te pulse", daemon=True).start()

    def note(self, text: str) -> None:
        """Why this rank ends; said best, where the store is still there."""
        try:
            self._notes.set(_left(self.rank), text[:2000])
        except RuntimeError:
            return

    def lost(self) -> str | None:
        """Who ended this run, for people: waits until every watched rank has said why it ends or stands still; None
        when all were told to end, or still live."""
        deadline = time.monotonic() + 3 * STILL_SECONDS
        while time.monotonic() < deadline:
            failed = [_failed(rank, peer) for rank, peer in self._peers.items() if peer.note.startswith(FAILED)]
            if failed:
                return failed[0]
            silent = {rank: peer for rank, peer in self._peers.items() if not peer.note}
            now = time.monotonic()
            if all(now - peer.since > STILL_SECONDS for peer in silent.values()):
                return self._died(silent) if silent else None
            time.sleep(0.1)
        still = {rank: peer for rank, peer in silent.items() if now - peer.since > STILL_SECONDS}
        told = [f"rank {rank} ended ({p.note})" for rank, p in self._peers.items() if p.note not in ("", LOST_CONTACT)]
        return self._died(still) if still else (told or [None])[0]

    def _died(self, ranks: Mapping[int, _Peer]) -> str:
        named = ", ".join(f"rank {rank}" for rank in ranks)
        return f"{named} of {self.size} died without a word (killed, or out of memory)"

    def _run(self) -> None:
        store, misses = None, 0
        while True:
            try:
                store = store or self._connect()
                self._beat(store)
                misses = 0
            except RuntimeError:
                store, misses = None, misses + 1
                if misses == _MISSES:
                    self._end(TORCHRUN_GONE)
                    return
            time.sleep(BEAT_SECONDS)

    def _beat(self, store: Any) -> None:
        store.add(_alive(self.rank), 1)
        for rank, peer in self._peers.items():
            count = store.add(_alive(rank), 0)
            if count != peer.count:
                peer.count, peer.since = count, time.monotonic()
            if not peer.note and store.check([_left(rank)]):
                peer.note = store.get(_left(rank)).decode("utf-8", "replace")
                if peer.note.startswith(FAILED):
                    self._end(_failed(rank, peer))
            if not peer.note and time.monotonic() - peer.since > self._timeout:
                self._end(f"rank {rank} of {self.size} gave no sign of life for {self._timeout:g} seconds")

    def _end(self, text: str) -> None:
        tell, self._on_end = self._on_end, None
        if tell is not None:
            tell(text)


def _failed(rank: int, peer: _Peer) -> str:
    return f"rank {rank} ended ({peer.note.removeprefix(FAILED)})"


def _alive(rank: int) -> str:
    return f"h3te/alive/{rank}"


def _left(rank: int) -> str:
    return f"h3te/left/{rank}"
