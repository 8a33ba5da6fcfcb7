"""The `gguf` package's reader, made to look at tensors without touching them and to jump over a tokenizer's arrays.

Contract: `reader_class()` is a GGUFReader for headers. Arrays of more than a few numbers, and all arrays of strings,
keep their type and no content; tensors have no data; lengths and counts that no real file has are ValueErrors before
anything is allocated. It overrides inner methods of the package: where those look different, the plain reader is used,
which gives the same, in seconds instead of milliseconds. Importing this module needs `gguf`.
"""

from __future__ import annotations

import inspect
import struct

import gguf
import numpy as np

MOST_KEPT = 64  # numbers of an array that are kept: shapes, rotary sections, flags per block
MOST_STRING = 1 << 24  # bytes of all texts outside of arrays; a chat template has thousands
MOST_ITEMS = 1 << 22  # of an array, and of all arrays of texts; vocabularies have a few 100,000
MOST_AXES = 8
_LENGTH = struct.Struct("<Q")
_OVERRIDDEN = {
    "_get": ("self", "offset", "dtype", "count"),
    "_get_str": ("self", "offset"),
    "_get_field_parts": ("self", "orig_offs", "raw_type"),
    "_build_tensors": ("self", "start_offs", "fields"),
}


def reader_class() -> type[gguf.GGUFReader]:
    """HeaderReader, or the plain reader when the installed package has other insides."""
    return HeaderReader if all(_is_known(name, names) for name, names in _OVERRIDDEN.items()) else gguf.GGUFReader


def _is_known(method: str, parameters: tuple[str, ...]) -> bool:
    found = getattr(gguf.GGUFReader, method, None)
    return found is not None and tuple(inspect.signature(found).parameters)[: len(parameters)] == parameters


class HeaderReader(gguf.GGUFReader):
    texts = 0  # bytes of texts so far
    passed = 0  # texts in arrays that were jumped over

    def _get_str(self, offset: int):
        length = self._number(offset, np.uint64)
        self.texts += length
        if length > len(self.data) - offset - 8 or self.texts > MOST_STRING:
            raise ValueError(f"a text of {length:,} bytes at byte {offset:,}")
        return super()._get_str(offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int):
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(self._number(orig_offs, np.uint32))
        count = self._number(orig_offs + 4, np.uint64)
        if count > MOST_ITEMS or kind == gguf.GGUFValueType.ARRAY:
            raise ValueError(f"an array of {count:,} {kind.name} at byte {orig_offs:,}")
        if count <= MOST_KEPT and kind != gguf.GGUFValueType.STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        end = self._end_of(kind, count, orig_offs + 12)
        if end > len(self.data):
            raise ValueError(f"an array that ends at byte {end:,}")
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, kind]

    def _number(self, offset: int, dtype: type) -> int:
        return int(self._get(offset, dtype)[0])

    def _end_of(self, kind: gguf.GGUFValueType, count: int, start: int) -> int:
        """Where `count` values that begin at `start` end."""
        if kind != gguf.GGUFValueType.STRING:
            return start + count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        self.passed += count
        if self.passed > MOST_ITEMS:
            raise ValueError(f"{self.passed:,} texts up to byte {start:,}")
        length_at, data, at = _LENGTH.unpack_from, memoryview(self.data), start
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        return at

    def _build_tensors(self, start_offs: int, fields: list) -> None:
        self.tensors = [_tensor(int(start_offs), field) for field in fields]


def _tensor(start: int, field: gguf.ReaderField) -> gguf.ReaderTensor:
    """What a tensor's header says, with exact whole numbers and without data."""
    _, name, _, dims, kind, offset = field.parts
    if len(dims) > MOST_AXES:
        raise ValueError(f"a tensor of {len(dims):,} axes at byte {field.offset:,}")
    known = gguf.GGMLQuantizationType(int(kind[0]))
    return gguf.ReaderTensor(bytes(name).decode(), known, dims, 0, 0, start + int(offset[0]), None, field)
