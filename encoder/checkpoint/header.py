"""Safetensors headers: names, dtypes, shapes and offsets, without touching tensor data.

Contract: `read_header(path)` checks that the file is complete to the byte and returns `Header`. Every defect is a
ValueError that says what the file is instead. Source: the safetensors format (8-byte little-endian header length, JSON,
data) and the failures that people report: partial downloads, git-lfs pointers, pickles and zips under a wrong name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as a header names it: where it is, `dtype` in safetensors spelling ("BF16"), shape, bytes."""

    file: Path
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Header:
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    file_bytes: int


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
    tensors = {name: _entry(path, name, fields) for name, fields in raw.items()}
    end = 8 + length + max((int(fields["data_offsets"][1]) for fields in raw.values()), default=0)
    if end != size:
        raise ValueError(
            f"{path.name}: expected {end:,} bytes as its header says, got {size:,}. "
            + (
                "The download is incomplete: download the file again."
                if size < end
                else "The file is damaged: replace it."
            )
        )
    return Header(tensors, metadata, size)


def _check_start(path: Path, start: bytes, size: int, length: int) -> None:
    kinds = (
        (
            _LFS[:24],
            "a git-lfs pointer, not the file itself. Fetch it with git lfs pull, or download it from the web page",
        ),
        (b"GGUF", "a GGUF file. This release opens safetensors: use the bf16 file or the official folder"),
        (b"PK\x03\x04", "a zip or PyTorch pickle, which is never opened. Use the .safetensors file"),
        (b"\x80\x02", "a pickle, which is never opened. Use the .safetensors file"),
    )
    for magic, what in kinds:
        if start.startswith(magic):
            raise ValueError(f"{path.name}: expected a safetensors file, got {what}.")
    if size < 10 or length > size - 8 or length > MAX_HEADER_BYTES:
        raise ValueError(
            f"{path.name}: expected a safetensors file, got {size:,} bytes whose first 8 announce a header of "
            f"{length:,}. "
            "The file is empty, cut short or of another kind: download it again."
        )


def _parsed(path: Path, text: bytes) -> dict:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{path.name}: expected a safetensors header in JSON, got unreadable text ({error}). Download the file "
            f"again."
        ) from error
    if not isinstance(raw, dict):
        raise ValueError(
            f"{path.name}: expected a safetensors header object, got {type(raw).__name__}. Replace the file."
        )
    return raw


def _entry(path: Path, name: str, fields: dict) -> TensorEntry:
    try:
        begin, end = (int(offset) for offset in fields["data_offsets"])
        return TensorEntry(path, name, str(fields["dtype"]), tuple(int(n) for n in fields["shape"]), end - begin)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path.name}: expected dtype, shape and data_offsets for tensor {name!r}, got {fields!r}. Replace the "
            f"file."
        ) from error
