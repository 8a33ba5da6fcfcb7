"""Safetensors headers: names, dtypes, shapes and offsets, without touching tensor data.

Contract: `read_header(path)` checks that the file is complete to the byte and returns `Header`. Every defect is a
ValueError that says what the file is instead. What a header may hold is settled here: printable names, whole sizes,
texts as metadata, each name once, each byte of data in one tensor; code behind it relies on that. Only regular files
are opened: a pipe would wait for ever. Source: the safetensors format (8-byte little-endian header length, JSON, data)
and the failures that people report: partial downloads, git-lfs pointers, pickles and zips under a wrong name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from ..regular import regular_stat
from .plain_json import parsed
from .wording import has_control

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
MOST_TENSORS = 65_536  # of one file; the encoder has about 1,800, packed
LONGEST_NAME = 500  # characters of a tensor's name
_MOST_AXES = 8
_DTYPE = re.compile(r"\w{1,32}", re.ASCII)
_LFS = b"version https://git-lfs"
_PAGE = (b"<!doctype", b"<html", b"<?xml", b"<head")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as a header names it: `dtype` in safetensors or GGUF spelling ("BF16", "Q4_K"), shape of the matrix,
    bytes in the file and where in the file they begin. A piece of one (piece.py) may be several `runs` of equal size,
    their beginnings `step` bytes apart."""

    file: Path
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0
    runs: int = 1
    step: int = 0


@dataclass(frozen=True)
class Header:
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of one .safetensors file. Raises ValueError for anything that is not a complete one."""
    size, text = read_text(path)
    raw, start = _parsed(path, text), 8 + len(text)
    metadata = _metadata(path, raw.pop("__metadata__", {}))
    tensors = {name: _entry(path, name, fields, start) for name, fields in raw.items()}
    _check_complete(path, size, start, tensors)
    return Header(tensors, metadata)


def read_text(path: Path, most: int = MAX_HEADER_BYTES) -> tuple[int, bytes]:
    """(bytes of the file, the header's JSON as it stands there). Raises ValueError for what cannot be safetensors, and
    for a header of more than `most` bytes."""
    size = regular_stat(path).st_size
    with path.open("rb") as file:
        start = file.read(24)
        length = int.from_bytes(start[:8], "little")
        _check_start(path, start, size, length, most)
        file.seek(8)
        return size, file.read(length)


def _metadata(path: Path, found: object) -> dict[str, str]:
    wrong = [found] if not isinstance(found, dict) else [{k: v} for k, v in found.items() if not isinstance(v, str)]
    if wrong:
        raise ValueError(
            f"{path.name}: expected __metadata__ to be an object of texts, got {repr(wrong[0])[:60]}. Replace the file."
        )
    return found


def _check_complete(path: Path, size: int, start: int, tensors: dict[str, TensorEntry]) -> None:
    """Offsets end where the file ends, and every byte of data belongs to one tensor."""
    end = max((entry.offset + entry.nbytes for entry in tensors.values()), default=start)
    if end != size:
        raise ValueError(
            f"{path.name}: expected {end:,} bytes as its header says, got {size:,}. "
            + (
                "The download is incomplete: download the file again."
                if size < end
                else "The file is damaged: replace it."
            )
        )
    free = start
    for entry in sorted(tensors.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != free:
            raise ValueError(
                f"{path.name}: expected tensors that fill {end - start:,} bytes without gap or overlap, got "
                f"{entry.stored_name} at {entry.offset - start:,} where {free - start:,} comes next. The file is "
                "damaged: replace it."
            )
        free += entry.nbytes


def _check_start(path: Path, start: bytes, size: int, length: int, most: int) -> None:
    kinds = (
        (
            _LFS[:24],
            "a git-lfs pointer, not the file itself. Fetch it with git lfs pull, or download it from the web page",
        ),
        (b"GGUF", "a GGUF file under another name. Rename it to end in .gguf"),
        (b"PK\x03\x04", "a zip or PyTorch pickle, which is never opened. Use the .safetensors file"),
        *((bytes((0x80, n)), "a pickle, which is never opened. Use the .safetensors file") for n in range(2, 6)),
    )
    for magic, what in kinds:
        # a header of 640 bytes begins as a pickle does, but its JSON follows
        if start.startswith(magic) and start[8:9] != b"{":
            raise ValueError(f"{path.name}: expected a safetensors file, got {what}.")
    if start.lstrip().lower().startswith(_PAGE):
        raise ValueError(
            f"{path.name}: expected a safetensors file, got a web page that was saved under its name. Open the "
            "download's address in a browser: log in there or accept the licence, then download the file again."
        )
    if size < 10 or length > size - 8 or length > most:
        raise ValueError(
            f"{path.name}: expected a safetensors file, got {size:,} bytes whose first 8 announce a header of "
            f"{length:,}. The file is empty, cut short or of another kind: download it again."
        )


def _parsed(path: Path, text: bytes) -> dict:
    try:
        raw = parsed(text, unique=True)
    except ValueError as error:
        raise ValueError(
            f"{path.name}: expected a safetensors header in JSON, got unreadable text ({error}). Download the file "
            "again."
        ) from error
    if not isinstance(raw, dict):
        raise ValueError(
            f"{path.name}: expected a safetensors header object, got {type(raw).__name__}. Replace the file."
        )
    if len(raw) > MOST_TENSORS:
        raise ValueError(
            f"{path.name}: expected a header of at most {MOST_TENSORS:,} tensors, got {len(raw):,}. Choose another "
            "file."
        )
    return raw


def _entry(path: Path, name: str, fields: object, start: int) -> TensorEntry:
    dtype, shape, offsets = _fields(path, name, fields)
    begin, end = offsets
    wanted = math.prod(shape) * DTYPE_BYTES.get(dtype, 0)
    if end < begin or (dtype in DTYPE_BYTES and end - begin != wanted):
        raise ValueError(
            f"{path.name}: expected {wanted:,} bytes for tensor {name!r} ({dtype} {list(shape)}), got offsets "
            f"{begin:,} to {end:,}. The file is damaged: replace it."
        )
    return TensorEntry(path, name, dtype, shape, end - begin, start + begin)


def _fields(path: Path, name: str, fields: object) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """(dtype, shape, offsets) of a tensor, of the types and in the sizes that they can have."""
    if has_control(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"{path.name}: expected printable tensor names of at most {LONGEST_NAME} characters, got {name[:100]!r}. "
            "The file is damaged: replace it."
        )
    known = fields if isinstance(fields, dict) else {}
    dtype, shape, offsets = known.get("dtype"), known.get("shape"), known.get("data_offsets")
    named = isinstance(dtype, str) and _DTYPE.fullmatch(dtype)
    if not (named and _whole(shape) and len(shape) <= _MOST_AXES and _whole(offsets) and len(offsets) == 2):
        raise ValueError(
            f"{path.name}: expected dtype, shape and data_offsets for tensor {name!r:.200}, the numbers whole and not "
            f"negative, got {repr(fields)[:200]}. Replace the file."
        )
    return dtype, tuple(shape), tuple(offsets)


def _whole(numbers: object) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
