"""What a running ComfyUI holds: memory, handles, threads, processes and unfinished files.

Contract: `footprint(pid, folders)` is of one moment; `growth(values)` compares the last with the first, medians of
three, so that one odd moment decides nothing. Needs psutil.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROUND = 3
UNFINISHED = ("*.partial", "*.tmp", "*.part")


@dataclass(frozen=True)
class Footprint:
    """rss, private: bytes; private without what is mapped from files, 0 where the system does not tell."""

    rss: int
    private: int
    handles: int
    threads: int
    children: int
    unfinished: tuple[str, ...]
    temporary: int


def footprint(pid: int, folders: Iterable[Path], temporary: Path) -> Footprint:
    """folders: where unfinished files are looked for. temporary: a folder whose entries are counted."""
    import psutil

    process = psutil.Process(pid)
    handles = process.num_handles() if os.name == "nt" else process.num_fds()
    unfinished = tuple(sorted(str(path) for folder in folders for path in unfinished_in(folder)))
    entries = sum(1 for _ in temporary.iterdir()) if temporary.is_dir() else 0
    children = len(process.children(recursive=True))
    rss = process.memory_info().rss
    return Footprint(rss, _private(process), handles, process.num_threads(), children, unfinished, entries)


def unfinished_in(folder: Path) -> list[Path]:
    return [path for form in UNFINISHED for path in folder.rglob(form)]


def _private(process) -> int:
    import psutil

    try:
        return process.memory_full_info().uss
    except (AttributeError, psutil.AccessDenied):
        return 0


def growth(values: Sequence[float]) -> float:
    """Of the last against the first, as a share; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    size = min(ROUND, len(values) // 2)
    first, last = median(values[:size]), median(values[-size:])
    return (last - first) / first if first else 0.0
