"""GGUF headers: key-values, and the names, types, shapes and places of tensors, without touching tensor data.

Contract: `read_gguf(path)` checks that the file is complete to the byte and returns `GgufHeader`; shapes are in torch's
order. Every defect is a ValueError that says what the file is instead; without the `gguf` package it is a RuntimeError.
Nothing stays open or mapped. A header is parsed once per state of its file: with a vocabulary that takes 0.1 s. Source:
the GGUF format, versions 2 and 3, little-endian, parsed by the `gguf` package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from ..regular import regular_stat
from .header import TensorEntry

Value = str | int | float | bool | list
_START = struct.Struct("<4sIQQ")  # magic, version, tensors, key-values
_VERSIONS = (2, 3)
_MOST = 20_000  # tensors, key-values; real files have up to 2,000
_LEAST_ALIGNMENT = 8  # of the format; scales in the blocks are read as float16
_AGAIN = "The file is damaged: download it again."


@dataclass(frozen=True)
class GgufHeader:
    """`values`: key-values that are numbers, texts or short lists of numbers."""

    tensors: dict[str, TensorEntry]
    values: dict[str, Value]


class _Parsed(NamedTuple):
    """What the package's reader found, as plain Python values. tensors: (name, type, block values, block bytes, shape,
    offset)."""

    values: dict[str, Value]
    tensors: list[tuple[str, str, int, int, tuple[int, ...], int]]
    alignment: int


def read_gguf(path: Path) -> GgufHeader:
    """Read and check the header of one .gguf file. Raises ValueError for anything that is not a complete one, OSError
    where it cannot be read, RuntimeError without the `gguf` package."""
    found = regular_stat(path)
    outcome = _outcome(path, found.st_size, (found.st_mtime_ns, found.st_ino, found.st_dev))
    if isinstance(outcome, str):
        raise ValueError(outcome)
    return outcome


@lru_cache(maxsize=64)
def _outcome(path: Path, size: int, state: tuple[int, ...]) -> GgufHeader | str:
    """The header, or why it is none. `state` is part of the cache key, else unused."""
    try:
        return _read(path, size)
    except ValueError as error:
        return str(error)


def _read(path: Path, size: int) -> GgufHeader:
    with path.open("rb") as file:
        _check_start(path, file.read(_START.size), size)
    parsed = _parse(path, size)
    _check_whole(path, parsed.values)
    entries = [_entry(path, *tensor) for tensor in parsed.tensors]
    _check_complete(path, size, parsed.alignment, entries)
    return GgufHeader({entry.stored_name: entry for entry in entries}, parsed.values)


def _check_start(path: Path, start: bytes, size: int) -> None:
    if len(start) < _START.size or start[:4] != b"GGUF":
        raise ValueError(f"{path.name}: expected a GGUF file, got {_other(path, start, size)}.")
    _, version, tensors, values = _START.unpack(start)
    if version & 0xFFFF == 0 and version:
        raise ValueError(
            f"{path.name}: expected a little-endian GGUF file, got a big-endian one. Use the file for common computers."
        )
    if version not in _VERSIONS:
        raise ValueError(f"{path.name}: expected GGUF version 2 or 3, got {version}. Use a newer conversion.")
    if max(tensors, values) > _MOST:
        raise ValueError(
            f"{path.name}: expected a GGUF file of some thousand tensors, got {tensors:,} tensors and {values:,} "
            f"key-values. {_AGAIN}"
        )


def _other(path: Path, start: bytes, size: int) -> str:
    if start.startswith(b"version https://git-lfs"[: _START.size]):
        return "a git-lfs pointer, not the file itself. Fetch it with git lfs pull, or download it from the web page"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "a web page that was saved under its name. Log in there or accept the licence, then download it again"
    if start[8:9] == b"{" and path.suffix.lower() in (".safetensors", ".sft"):
        return "a safetensors file. Choose a .gguf file"
    if start[8:9] == b"{":
        return "a safetensors file under another name. Rename it to end in .safetensors"
    return f"{size:,} bytes that begin with {start[:4]!r}. The file is empty, cut short or of another kind"


def _parse(path: Path, size: int) -> _Parsed:
    """The reader maps the file while this runs; its errors leave as text, or their frames would keep it mapped."""
    reader_class = _reader_class()
    try:
        return _plain(reader_class(path))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error) as error:
        reason = f"{type(error).__name__}: {error}"
    raise ValueError(
        f"{path.name}: expected a GGUF header that can be read, got {size:,} bytes that break off or are damaged in it "
        f"({reason[:200]}). Download the file again, or update the reader: pip install -U gguf."
    )


def _reader_class() -> type:
    try:
        from .gguf_reader import reader_class
    except ImportError as error:
        raise RuntimeError(
            f"GGUF: expected the Python package gguf, got none ({error}). Install it where ComfyUI runs: "
            "python -m pip install gguf"
        ) from error
    return reader_class()


def _plain(reader) -> _Parsed:
    from gguf import GGML_QUANT_SIZES

    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}  # its own counts
    values = {name: value for name, field in fields.items() if (value := _value(field)) is not None}
    tensors = [
        (tensor.name, tensor.tensor_type.name, *GGML_QUANT_SIZES[tensor.tensor_type],
         tuple(int(n) for n in reversed(tensor.field.parts[3])), int(tensor.data_offset))
        for tensor in reader.tensors
    ]  # fmt: skip
    return _Parsed(values, tensors, int(reader.alignment))


def _value(field) -> Value | None:
    """A key's value; None for long arrays and arrays of texts."""
    kinds = [kind.name for kind in field.types]
    if kinds == ["STRING"]:
        return bytes(field.parts[-1]).decode()
    if kinds[0] != "ARRAY":
        return field.parts[-1].tolist()[0]
    if kinds[-1] == "STRING" or not 0 < len(field.data) <= 64:
        return None
    return [field.parts[i].tolist()[0] for i in field.data]


def _check_whole(path: Path, values: Mapping[str, Value]) -> None:
    count = values.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        raise ValueError(
            f"{path.name}: expected a whole GGUF file, got one of {count} parts. Join them with llama.cpp's "
            "llama-gguf-split --merge, or use a file that is not split."
        )


def _entry(
    path: Path, name: str, kind: str, values: int, stored: int, shape: tuple[int, ...], offset: int
) -> TensorEntry:
    count = prod(shape)
    if count % values:
        raise ValueError(
            f"{path.name}: expected {name!r} ({kind} {list(shape)}) to be whole blocks of {values} values, got "
            f"{count:,} values. {_AGAIN}"
        )
    return TensorEntry(path, name, kind, shape, count // values * stored, offset)


def _check_complete(path: Path, size: int, alignment: int, entries: Iterable[TensorEntry]) -> None:
    """Tensors are aligned and do not overlap; the file ends with the last one, or with the padding behind it."""
    end, step = 0, max(alignment, _LEAST_ALIGNMENT)
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < end or entry.offset % step:
            raise ValueError(
                f"{path.name}: expected tensors without overlap at multiples of {step} bytes, got "
                f"{entry.stored_name!r} at byte {entry.offset:,}, {end:,} being free. {_AGAIN}"
            )
        end = entry.offset + entry.nbytes
    padded = -(-end // alignment) * alignment
    if end and not end <= size <= padded:
        raise ValueError(
            f"{path.name}: expected {padded:,} bytes as its header says, got {size:,}. "
            + (
                "The download is incomplete: download the file again."
                if size < end
                else "The file is damaged: replace it."
            )
        )
