"""Room for the files that a benchmark generates, asked for before the first byte is written."""

from __future__ import annotations

import shutil
from pathlib import Path

SPARE_BYTES = 2e9  # disk that stays free


def require_space(folder: Path, needed: float, who: str, what: str) -> None:
    """folder: an existing one on that disk; needed: bytes. Raises RuntimeError with both numbers."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise RuntimeError(
            f"{who}: expected {(needed + SPARE_BYTES) / 1e9:.1f} GB of free disk for a generated {what} (kept for "
            f"later runs; make clean deletes it), got {free / 1e9:.1f} GB. Free some space and run it again."
        )
