"""Bodies of requests and replies: the safetensors format, read with bounds and without trust.

Contract: `framed(tensors, metadata)` gives the pieces of a body, which are views of the tensors; `unframed(body, ...)`
gives tensors that are views of the body. Only the given names, dtypes and axes pass, each name once, every byte belongs
to one tensor, and the header is small; everything else is a ValueError before any tensor is made. Source: the
safetensors format (8-byte little-endian header length, JSON, data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ..checkpoint.plain_json import parsed

MAX_HEADER_BYTES = 65_536  # six tensors and a few short texts; JSON of this size costs nothing to read
_LONGEST_TEXT = 4096  # characters of one value of the metadata
DTYPES = {"I64": torch.int64, "BF16": torch.bfloat16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Body = bytes | bytearray | memoryview | torch.Tensor
Known = Mapping[str, tuple[Sequence[str], int]]  # name -> dtypes as the format spells them, axes


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def framed(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> list[memoryview]:
    """The header, then each tensor's bytes, int64 first so that all of them are aligned. Tensors of other devices or
    strides are copied, others are not."""
    ordered = sorted(tensors.items(), key=lambda item: item[1].dtype != torch.int64)
    fields: dict[str, object] = {"__metadata__": dict(metadata)}
    data, offset = [], 0
    for name, tensor in ordered:
        view = memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        offsets = [offset, offset + view.nbytes]
        fields[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data.append(view)
        offset += view.nbytes
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [memoryview(len(header).to_bytes(8, "little") + header), *data]


def unframed(body: Body, known: Known, who: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors, metadata). body: a uint8 tensor or what lends its bytes; tensors share its memory, but for `bytes`,
    which are copied once. who: begins the messages. Raises ValueError."""
    raw = _as_tensor(body)
    header, start = _header(raw, who)
    metadata = _metadata(header.pop("__metadata__", {}), who)
    entries = [_entry(name, fields, known, who) for name, fields in header.items()]
    _check_whole(entries, len(raw) - start, who)
    return {entry.name: _tensor(raw, start, entry) for entry in entries}, metadata


def _as_tensor(body: Body) -> torch.Tensor:
    if isinstance(body, torch.Tensor):
        return body
    if not len(body):
        return torch.empty(0, dtype=torch.uint8)
    writable = isinstance(body, bytearray) or (isinstance(body, memoryview) and not body.readonly)
    return torch.frombuffer(body if writable else bytearray(body), dtype=torch.uint8)


def _header(raw: torch.Tensor, who: str) -> tuple[dict, int]:
    length = int.from_bytes(raw[:8].numpy().tobytes(), "little")
    if len(raw) < 10 or length > min(len(raw) - 8, MAX_HEADER_BYTES):
        raise ValueError(
            f"{who}: expected a safetensors body with a header of at most {MAX_HEADER_BYTES:,} bytes, got "
            f"{len(raw):,} bytes whose first 8 announce {length:,}. Send one body in the safetensors format."
        )
    try:
        header = parsed(raw[8 : 8 + length].numpy().tobytes(), unique=True)
    except ValueError as error:
        raise ValueError(f"{who}: expected a header in JSON, got other text ({error}). Send safetensors.") from error
    if not isinstance(header, dict):
        raise ValueError(f"{who}: expected a header object, got {type(header).__name__}. Send safetensors.")
    return header, 8 + length


def _metadata(found: object, who: str) -> dict[str, str]:
    texts = found if isinstance(found, dict) else {}
    if not isinstance(found, dict) or any(not isinstance(v, str) or len(v) > _LONGEST_TEXT for v in texts.values()):
        raise ValueError(
            f"{who}: expected __metadata__ as texts of at most {_LONGEST_TEXT} characters, got {repr(found)[:80]}. "
            "Send each value as a text."
        )
    return texts


def _entry(name: str, fields: object, known: Known, who: str) -> _Entry:
    if name not in known:
        raise ValueError(f"{who}: expected tensors {', '.join(known)}, got {name!r:.80}. Leave it out.")
    dtypes, axes = known[name]
    told = fields if isinstance(fields, dict) else {}
    dtype, shape, offsets = told.get("dtype"), told.get("shape"), told.get("data_offsets")
    if dtype not in dtypes or not _whole(shape) or len(shape) != axes or not _whole(offsets) or len(offsets) != 2:
        raise ValueError(
            f"{who}: expected {name} as {' or '.join(dtypes)} with {axes} {'axis' if axes == 1 else 'axes'}, got "
            f"{repr(fields)[:160]}. Send it in that form."
        )
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(
            f"{who}: expected {math.prod(shape) * DTYPES[dtype].itemsize:,} bytes of {name} ({dtype} {shape}), got "
            f"offsets {offsets[0]:,} to {offsets[1]:,}. The body is damaged: send it again."
        )
    return _Entry(name, DTYPES[dtype], tuple(shape), *offsets)


def _whole(numbers: object) -> bool:
    return isinstance(numbers, list) and len(numbers) < 9 and all(type(n) is int and 0 <= n < 1 << 40 for n in numbers)


def _check_whole(entries: Sequence[_Entry], size: int, who: str) -> None:
    """The tensors fill the body, without gap or overlap."""
    ordered = sorted(entries, key=lambda entry: (entry.start, entry.stop))
    edges = [0, *(edge for entry in ordered for edge in (entry.start, entry.stop)), size]
    if any(stop != start for stop, start in list(pairwise(edges))[::2]):
        raise ValueError(
            f"{who}: expected tensors that fill {size:,} bytes, got offsets that leave gaps, overlap or end elsewhere. "
            "The body is incomplete or damaged: send it again."
        )


def _tensor(raw: torch.Tensor, start: int, entry: _Entry) -> torch.Tensor:
    own = raw[start + entry.start : start + entry.stop]
    if own.data_ptr() % entry.dtype.itemsize or own.storage_offset() % entry.dtype.itemsize:
        own = own.clone()  # another client's order of tensors
    return own.view(entry.dtype).view(entry.shape)
