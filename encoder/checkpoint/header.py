"""Safetensors headers: names, dtypes, shapes and offsets, without touching tensor data.

Contract: `read_header(path)` checks that the file is complete to the byte and returns `Header`. Every defect is a
ValueError that says what the file is instead. Source: the safetensors format (8-byte little-endian header length, JSON,
data) and the failures that people report: partial downloads, git-lfs pointers, pickles and zips under a wrong name.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_LFS = b"version https://git-lfs"
_PAGE = (b"<!doctype", b"<html", b"<?xml", b"<head")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as a header names it: `dtype` in safetensors or GGUF spelling ("BF16", "Q4_K"), shape of the matrix,
    bytes in the file and where in the file they begin."""

    file: Path
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0


@dataclass(frozen=True)
class Header:
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of one .safetensors file. Raises ValueError for anything that is not a complete one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        _check_start(path, start + file.read(16), size, length)
        file.seek(8)
        raw = _parsed(path, file.read(length))
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"{path.name}: expected __metadata__ to be an object, got {metadata!r:.60}. Replace the file.")
    tensors = {name: _entry(path, name, fields, 8 + length) for name, fields in raw.items()}
    _check_complete(path, size, 8 + length, raw, tensors)
    return Header(tensors, metadata)


def _check_complete(path: Path, size: int, start: int, raw: dict, tensors: dict[str, TensorEntry]) -> None:
    """Offsets end where the file ends, and every byte of data belongs to one tensor."""
    end = start + max((int(fields["data_offsets"][1]) for fields in raw.values()), default=0)
    if end != size:
        raise ValueError(
            f"{path.name}: expected {end:,} bytes as its header says, got {size:,}. "
            + (
                "The download is incomplete: download the file again."
                if size < end
                else "The file is damaged: replace it."
            )
        )
    held = sum(entry.nbytes for entry in tensors.values())
    if held != end - start:
        raise ValueError(
            f"{path.name}: expected tensors that fill {end - start:,} bytes without gap or overlap, got {held:,}. "
            "The file is damaged: replace it."
        )


def _check_start(path: Path, start: bytes, size: int, length: int) -> None:
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
    if size < 10 or length > size - 8 or length > MAX_HEADER_BYTES:
        raise ValueError(
            f"{path.name}: expected a safetensors file, got {size:,} bytes whose first 8 announce a header of "
            f"{length:,}. The file is empty, cut short or of another kind: download it again."
        )


def _parsed(path: Path, text: bytes) -> dict:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path.name}: expected a safetensors header in JSON, got unreadable text ({error}). Download the file "
            "again."
        ) from error
    if not isinstance(raw, dict):
        raise ValueError(
            f"{path.name}: expected a safetensors header object, got {type(raw).__name__}. Replace the file."
        )
    return raw


def _entry(path: Path, name: str, fields: dict, start: int) -> TensorEntry:
    try:
        begin, end = (int(offset) for offset in fields["data_offsets"])
        dtype, shape = str(fields["dtype"]), tuple(int(n) for n in fields["shape"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path.name}: expected dtype, shape and data_offsets for tensor {name!r}, got {fields!r:.200}. "
            "Replace the file."
        ) from error
    wanted = math.prod(shape) * DTYPE_BYTES.get(dtype, 0)
    if begin < 0 or end < begin or (dtype in DTYPE_BYTES and end - begin != wanted):
        raise ValueError(
            f"{path.name}: expected {wanted:,} bytes for tensor {name!r} ({dtype} {list(shape)}), got offsets "
            f"{begin:,} to {end:,}. The file is damaged: replace it."
        )
    return TensorEntry(path, name, dtype, shape, end - begin, start + begin)
