"""The most memory that this process takes while something runs, sampled in a thread.

Contract: `with MemoryPeak() as peak: ...`, then `peak.private` (bytes above the start that no file backs; Linux only,
else None) and `peak.resident` (bytes above the start, mapped files included).
"""

from __future__ import annotations

import threading

from measure_encode import private, resident

INTERVAL = 0.01  # seconds


class MemoryPeak:
    def __enter__(self) -> MemoryPeak:
        self._first = private(), resident()
        self._most = list(self._first)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL):
            now = private(), resident()
            self._most = [None if a is None else max(a, b) for a, b in zip(now, self._most, strict=True)]

    @property
    def private(self) -> int | None:
        return None if self._first[0] is None else self._most[0] - self._first[0]

    @property
    def resident(self) -> int:
        return self._most[1] - self._first[1]
