"""What decides what a checkpoint is, as times and sizes; of GGUF files the first bytes are read too, once each.

Contract: `file_state(path)` changes when the checkpoint does, and only then: with its own files, with the config.json
and the tokenizer beside them, and for a GGUF file with those beside it that can be its vision file. It never raises:
what may not be looked at counts as absent.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ...encoder.checkpoint.gguf_vision import vision_candidates
from ...encoder.regular import is_folder
from ...encoder.tokens import find_tokenizer_files

# (path, mtime in ns, size, inode, device) of each file that decides what a checkpoint is
State = tuple[tuple[str, int, int, int, int], ...]


def file_state(path: Path) -> State:
    """Of a file, or of a folder's configs and shards, and of what is read beside them; () for neither."""
    own = tuple(_stamps(_folder_files(path) if is_folder(path) else [path]))
    return own and own + tuple(_stamps(_beside(path)))


def header_state(path: Path) -> State:
    """Of a single file and the config.json beside it, which decide what its header says; () for a folder or neither."""
    own = tuple(_stamps([path]))
    return own and own + tuple(_stamps([path.parent / "config.json"]))


def _folder_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors"))


def _beside(path: Path) -> Iterator[Path]:
    yield path.parent / "config.json"
    yield from find_tokenizer_files(path)
    if path.suffix.lower() == ".gguf":
        yield from vision_candidates(path)


def _stamps(files: list[Path] | Iterator[Path]) -> Iterator[tuple[str, int, int, int, int]]:
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield str(file), found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
