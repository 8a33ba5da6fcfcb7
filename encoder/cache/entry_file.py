"""One finished conditioning as one safetensors file: written whole, verified whole.

Contract: `pack(key, identity_key, stored)` gives the file's bytes in pieces, `read_entry(file, key)` what they hold,
`read_record(file, key)` the header's part alone. The header is built again from the record that it holds and must be
the same to the byte, the record and all tensors have a CRC-32 (24 MB: crc32 13 ms, sha256 24 ms and 90 without its
processor instructions, blake2b 47 ms; damage is to be found, not an attacker). Everything else is a `DamagedEntry`, or
`OtherVersion` for one that another release wrote. Other programs read the files with the safetensors package.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from ..checkpoint.files import STORED_TYPES

VERSION = 1
KEY = re.compile(r"[0-9a-f]{64}")
MAX_HEADER_BYTES = 16_000_000  # facts hold a prompt; the longest has about 3 MB in JSON
_MARK = "h3te_conditioning"
_START = b'{"__metadata__":{"' + _MARK.encode() + b'":"'
_DTYPES = {"BF16": STORED_TYPES["BF16"], "F32": STORED_TYPES["F32"]}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BLOCK = 1 << 20  # read and checked while it is in the processor's cache


class DamagedEntry(ValueError):
    """Not a file that this store wrote, or not as it wrote it."""


class OtherVersion(ValueError):
    """Whole perhaps, but of another release."""


@dataclass(frozen=True, eq=False)
class StoredConditioning:
    """hidden [S, D] bfloat16 or float32; token_tags and token_ids int64 [S]; all on the CPU. facts: JSON values for
    people (presentation text, parts, provenance). Shared by all who ask for it: never modify the tensors, copy them."""

    hidden: torch.Tensor
    token_tags: torch.Tensor
    token_ids: torch.Tensor
    facts: Mapping

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes + self.token_tags.nbytes + self.token_ids.nbytes


def check_stored(stored: StoredConditioning) -> None:
    """Raises ValueError for shapes, dtypes or facts that are not those of a conditioning."""
    hidden, tags, ids = stored.hidden, stored.token_tags, stored.token_ids
    if hidden.dim() != 2 or 0 in hidden.shape or hidden.dtype not in _NAMES:
        raise ValueError(
            f"conditioning store: expected hidden as bfloat16 or float32 [S, D], got {hidden.dtype} "
            f"{list(hidden.shape)}. Pass one sequence, without a batch axis."
        )
    for name, values in (("token_tags", tags), ("token_ids", ids)):
        if values.dtype != torch.int64 or tuple(values.shape) != (len(hidden),):
            raise ValueError(
                f"conditioning store: expected {name} as int64 [{len(hidden)}], got {values.dtype} "
                f"{list(values.shape)}. Pass those of the same encode."
            )
    facts_text(stored.facts)


def facts_text(facts: Mapping) -> str:
    try:
        text = json.dumps(dict(facts), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"conditioning store: expected facts of JSON values, got others ({error}). Pass texts, numbers and lists."
        ) from error
    if len(text) > MAX_HEADER_BYTES // 4:
        raise ValueError(
            f"conditioning store: expected facts of at most {MAX_HEADER_BYTES // 4:,} bytes, got {len(text):,}. "
            "Leave out what is long."
        )
    return text


def pack(key: str, identity_key: str, stored: StoredConditioning) -> list[bytes | memoryview]:
    """The bytes of a file, in order. stored: checked, contiguous, on the CPU."""
    (tokens, width), dtype = stored.hidden.shape, _NAMES[stored.hidden.dtype]
    record = {"version": VERSION, "key": key, "identity": identity_key, "tokens": tokens, "width": width,
              "dtype": dtype, "facts": dict(stored.facts)}  # fmt: skip
    text = json.dumps(record, allow_nan=False)
    data = [_bytes(tensor) for tensor in (stored.token_ids, stored.token_tags, stored.hidden)]
    checksum = zlib.crc32(text.encode())
    for piece in data:
        checksum = zlib.crc32(piece, checksum)
    header = _header(text, f"{checksum:08x}", record)
    return [len(header).to_bytes(8, "little") + header, *data]


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy()).cast("B")


def _header(text: str, checksum: str, record: Mapping) -> bytes:
    tokens, width, dtype = record["tokens"], record["width"], record["dtype"]
    end = 16 * tokens + tokens * width * _DTYPES[dtype].itemsize
    fields = {
        "__metadata__": {_MARK: text, "crc32": checksum},
        "token_ids": {"dtype": "I64", "shape": [tokens], "data_offsets": [0, 8 * tokens]},
        "token_tags": {"dtype": "I64", "shape": [tokens], "data_offsets": [8 * tokens, 16 * tokens]},
        "hidden": {"dtype": dtype, "shape": [tokens, width], "data_offsets": [16 * tokens, end]},
    }
    header = json.dumps(fields, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def is_marked(path: Path) -> bool:
    """Whether a file begins as this store's do: only such are ever deleted."""
    try:
        with path.open("rb") as file:
            return file.read(8 + len(_START))[8:] == _START
    except OSError:
        return False


def read_record(file: BinaryIO, key: str) -> dict:
    """version, key, identity, tokens, width, dtype and facts; the tensors are not read."""
    return _opened(file, key)[0]


def read_entry(file: BinaryIO, key: str) -> tuple[StoredConditioning, dict]:
    """What the file holds, and its record; every byte is verified."""
    record, text, checksum, size = _opened(file, key)
    raw = torch.empty(size, dtype=torch.uint8)
    view, found = memoryview(raw.numpy()), zlib.crc32(text.encode())
    for start in range(0, size, _BLOCK):
        block = view[start : start + _BLOCK]
        if file.readinto(block) != len(block):
            raise DamagedEntry("a file that ends early")
        found = zlib.crc32(block, found)
    if f"{found:08x}" != checksum:
        raise DamagedEntry("other bytes than its checksum says")
    tokens = record["tokens"]
    ids, tags, hidden = raw.split([8 * tokens, 8 * tokens, size - 16 * tokens])
    hidden = hidden.view(_DTYPES[record["dtype"]]).view(tokens, record["width"])
    return StoredConditioning(hidden, tags.view(torch.int64), ids.view(torch.int64), record["facts"]), record


def _opened(file: BinaryIO, key: str) -> tuple[dict, str, str, int]:
    """The record, its text, the checksum and the bytes of tensors that follow; `file` stands at the first of them."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or length > min(size - 8, MAX_HEADER_BYTES):
        raise DamagedEntry(f"{size:,} bytes whose first 8 announce a header of {length:,}")
    header = file.read(length)
    if not header.startswith(_START):
        raise DamagedEntry("a file of another kind")
    record, text, checksum = _parsed(header)
    version = record.get("version")
    if type(version) is int and version != VERSION:
        raise OtherVersion(f"version {version}")
    if not _is_record(record) or header != _header(text, checksum, record):
        raise DamagedEntry("a header that was changed")
    if record["key"] != key:
        raise DamagedEntry("the entry of another request")
    data = size - 8 - length
    if data != record["tokens"] * (16 + record["width"] * _DTYPES[record["dtype"]].itemsize):
        raise DamagedEntry(f"{data:,} bytes of tensors, not those that its header says")
    return record, text, checksum, data


def _parsed(header: bytes) -> tuple[dict, str, str]:
    try:
        metadata = json.loads(header)["__metadata__"]
        text, checksum = metadata[_MARK], metadata["crc32"]
        record = json.loads(text)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise DamagedEntry("a header that cannot be read") from error
    if not isinstance(record, dict) or not isinstance(checksum, str):
        raise DamagedEntry("a header that cannot be read")
    return record, text, checksum


def _is_record(record: Mapping) -> bool:
    counts = [record.get("tokens"), record.get("width")]
    return (
        all(type(count) is int and 0 < count < 1 << 31 for count in counts)
        and record.get("version") == VERSION
        and record.get("dtype") in [*_DTYPES]
        and all(isinstance(record.get(name), str) and KEY.fullmatch(record[name]) for name in ("key", "identity"))
        and isinstance(record.get("facts"), dict)
    )
