"""The most memory of this process from a moment on, as the system counts it.

Contract: `restart_peak()` makes `memory_peak.peak()` count from now on and says whether it does (Linux only:
elsewhere the system keeps the peak since the start of the process).
"""

from __future__ import annotations

from pathlib import Path


def restart_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True
