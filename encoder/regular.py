"""Regular files only: a FIFO or a device under a model's name waits for ever when it is opened.

Contract: `regular_stat(path)` before a file is opened. `is_regular(path)` and `is_folder(path)`, where one is looked
for, never raise, also not for what lies in a folder of another user, where `Path.is_file` and `Path.is_dir` do.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)  # fmt: skip


def regular_stat(path: Path) -> os.stat_result:
    """Raises ValueError for what is no regular file, OSError where it is absent or may not be looked at."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = next((what for is_kind, what in _KINDS if is_kind(found.st_mode)), "something else")
        raise ValueError(f"{path.name}: expected a file, got {kind}, which is never opened. Choose the file itself.")
    return found


def is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def is_regular(path: Path) -> bool:
    try:
        regular_stat(path)
    except (OSError, ValueError):
        return False
    return True
