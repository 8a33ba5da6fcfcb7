"""Finished conditioning in memory: the least recently used goes first.

Contract: at most `budget` bytes after every `put` and `get`, which may change from call to call. Safe for threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from .entry_file import StoredConditioning


@dataclass(frozen=True, eq=False)
class HeldEntry:
    stored: StoredConditioning
    identity_key: str
    used: int  # nanoseconds


class EntryMemory:
    def __init__(self) -> None:
        self._held: OrderedDict[str, HeldEntry] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self.nbytes = 0

    def get(self, key: str, now: int, budget: int) -> StoredConditioning | None:
        with self._lock:
            found = self._held.pop(key, None)
            if found is not None:
                self._held[key] = HeldEntry(found.stored, found.identity_key, now)
            self._keep_within(budget)
            return found and found.stored

    def put(self, key: str, entry: HeldEntry, budget: int) -> bool:
        """Whether it is held now: one that is larger than the budget is not, and costs no other its place."""
        with self._lock:
            self._drop(key)
            fits = entry.stored.nbytes <= budget
            if fits:
                self._held[key] = entry
                self.nbytes += entry.stored.nbytes
            self._keep_within(budget)
            return fits

    def entries(self) -> dict[str, HeldEntry]:
        with self._lock:
            return dict(self._held)

    def clear(self) -> int:
        """Returns the bytes."""
        with self._lock:
            freed, self.nbytes = self.nbytes, 0
            self._held.clear()
            return freed

    def _keep_within(self, budget: int) -> None:
        while self._held and self.nbytes > budget:
            self._drop(next(iter(self._held)))

    def _drop(self, key: str) -> None:
        found = self._held.pop(key, None)
        if found is not None:
            self.nbytes -= found.stored.nbytes
