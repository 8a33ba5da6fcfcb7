"""How much memory this process takes: now, at most so far, and at most while something runs, sampled in a thread.

Contract: `resident()`, `private()` (what no file backs; Linux only, else None) and `peak()` in bytes, the latter since
the process began or `reset_peak()`;
`with MemoryPeak() as peak: ...`, then `peak.private` and `peak.resident`, the most above the start.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import psutil

INTERVAL = 0.01  # seconds


def resident() -> int:
    """Resident bytes, mapped files included."""
    return psutil.Process().memory_info().rss


def private() -> int | None:
    """Bytes of anonymous memory: not backed by a file."""
    return _told("RssAnon:")


def peak() -> int:
    """The most that was ever resident in this process. Linux's own word: getrusage's also knows the process that
    started this one, which may have been far larger."""
    told = _told("VmHWM:")
    if told is not None:
        return told
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def reset_peak() -> bool:
    """From here on `peak()` is the most since now; False where the system has no such thing (other than Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _told(name: str) -> int | None:
    """One figure of /proc/self/status; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


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
