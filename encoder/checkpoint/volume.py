"""How many bytes of a checkpoint's files are tensors, and how many of them are never read.

Contract: sizes as the file system tells them; files that are not there count as nothing.
"""

from __future__ import annotations

from pathlib import Path

from .catalog import Catalog


def bytes_in_files(catalog: Catalog) -> int:
    """Sizes of all weight files that are there, headers included."""
    return sum(_size(file) for file in (*catalog.files_needed, *catalog.files_unneeded))


def bytes_unread(catalog: Catalog, needed: int) -> int:
    """Tensor bytes in opened files beyond `needed`, and whole files that are never opened."""
    held = sum(entry.nbytes for entry in catalog.entries.values())
    return max(held - needed, 0) + sum(_size(file) for file in catalog.files_unneeded)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
