"""The vision file (mmproj) that belongs to a GGUF file without vision: named, or found in the same folder.

Contract: `find_vision(path, width, named)` -> (header of the vision file or None, what to add when there is none). The
one that is named must fit, else ValueError. Beside the model, files that fit are those of architecture "clip" with
Qwen3-VL's DeepStack mergers that lead to the model's width; of several the largest is taken, and a warning says so.
`vision_candidates(path)`: the files beside it that decide this, told by a look at each one's first bytes.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .gguf_file import GgufHeader, read_gguf
from .gguf_names import is_vision_file

logger = logging.getLogger(__name__)

_PEEK_BYTES = 1 << 16  # the architecture is the first key-value that converters write
_ARCHITECTURE = re.compile(rb"general\.architecture\x08\0\0\0.\0{7}clip", re.DOTALL)  # a text, its length, the text
_LAST = "mm.2.weight"  # [width of the model, width of a merged patch]


def find_vision(path: Path, width: int, named: Path | None) -> tuple[GgufHeader | None, str]:
    """`width`: of the model's hidden states. Raises ValueError or OSError for a named file that does not fit."""
    if named is not None:
        return _named(path, width, Path(named)), ""
    candidates, broken = _beside(path)
    fitting = [header for header in candidates if width_of(header) == width]
    if len(fitting) > 1:
        fitting.sort(key=lambda header: (-_bytes(header), name_of(header)))
        logger.warning(
            "%s: %d vision files fit (%s): the largest is used. Name another in the loader's options.",
            path.name, len(fitting), ", ".join(map(name_of, fitting)),
        )  # fmt: skip
    if fitting:
        return fitting[0], ""
    return None, _what_to_add(path, [*map(_described, candidates), *broken])


def _named(path: Path, width: int, vision: Path) -> GgufHeader:
    header = read_gguf(vision)
    if not is_vision_file(header.tensors):
        raise ValueError(
            f"{vision.name}: expected a vision file of Qwen3-VL (v.blk.*, v.deepstack.*), got tensors such as "
            f"{', '.join(sorted(header.tensors)[:3]) or 'none'}. Name the mmproj file that belongs to {path.name}."
        )
    if width_of(header) != width:
        raise ValueError(
            f"{vision.name}: expected a vision file for a model {width} wide, got one for {width_of(header)}. "
            f"Name the mmproj file that belongs to {path.name}."
        )
    return header


def _beside(path: Path) -> tuple[list[GgufHeader], list[str]]:
    """Vision files in the folder of `path`, and what was wrong with those that cannot be read."""
    headers, broken = [], []
    for file in vision_candidates(path):
        try:
            headers.append(read_gguf(file))
        except (ValueError, OSError) as error:
            broken.append(str(error))
    return [header for header in headers if is_vision_file(header.tensors)], broken


def vision_candidates(path: Path) -> list[Path]:
    """Files of architecture "clip" beside `path`, by name. A folder may hold many files with long headers: each is
    looked into once per state. What cannot be read is none."""
    try:
        with os.scandir(path.parent) as entries:
            return sorted(path.parent / entry.name for entry in _ggufs(entries, path.name) if _says_clip(entry))
    except OSError:
        return []


def _ggufs(entries: Iterator[os.DirEntry[str]], but: str) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in entries if entry.name.lower().endswith(".gguf") and entry.name != but)


def _says_clip(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat()
        state = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
        return stat.S_ISREG(found.st_mode) and _begins_as_clip(entry.path, state)
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _begins_as_clip(file: str, state: tuple[int, ...]) -> bool:
    """`state` is part of the cache key, else unused."""
    with Path(file).open("rb") as opened:
        return _ARCHITECTURE.search(opened.read(_PEEK_BYTES)) is not None


def width_of(header: GgufHeader) -> int:
    """Width of the model that a vision file was made for; 0 where it does not say."""
    last = header.tensors.get(_LAST)
    return last.shape[0] if last and last.shape else 0


def name_of(header: GgufHeader) -> str:
    return next(iter(header.tensors.values())).file.name


def _bytes(header: GgufHeader) -> int:
    return sum(entry.nbytes for entry in header.tensors.values())


def _described(header: GgufHeader) -> str:
    return f"{name_of(header)} is for a model {width_of(header)} wide"


def _what_to_add(path: Path, found: list[str]) -> str:
    beside = f" (found: {'; '.join(found)})" if found else ""
    return (
        f"{path.name} holds no vision part{beside}. Put its vision file, a .gguf with mmproj in its name from the same "
        f"download page, into {path.parent}, or name it in the loader's options."
    )
