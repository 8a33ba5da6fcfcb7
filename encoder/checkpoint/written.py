"""The text of a safetensors header in pieces that can be compared, one a tensor, without parsing it.

Contract: `split_header(text)` for what the common writers leave: type, shape and offsets in this order, no line breaks.
`runs(pieces)`: consecutive tensors of one layer, without their layer's name; `read_piece` -> what a piece says. All of
it is ValueError for other spellings of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ..weights import Shape
from .plain_json import parsed

_START = rb'\{(?:"__metadata__": ?(\{[^{}]*\}), ?)?'
_PIECE = rb'([\w.]+)": ?\{"dtype": ?"(\w+)", ?"shape": ?\[((?:\d{1,15}(?:, ?)?)*)'
_OFFSETS = rb', ?"data_offsets": ?\[(\d{1,18}), ?(\d{1,18})'
_UNCOMMON = "header: expected it as the common writers leave it, got another. Inspect the file instead."


@dataclass(frozen=True)
class SplitHeader:
    """heads: of each tensor what precedes it, name, type and shape; tails: its offsets. Each ends before its "]".
    opening: how every head begins."""

    metadata: dict
    opening: bytes
    heads: Sequence[bytes]
    tails: Sequence[bytes]

    @property
    def prefix(self) -> bytes:
        """What stands before "layers." in the first name that has it."""
        first = next((head for head in self.heads if b"layers." in head), b"layers.")
        return first[len(self.opening) : first.index(b"layers.")]

    def begin(self, index: int) -> int:
        """Where the data of a tensor begins, from the first byte of data."""
        found = re.fullmatch(_OFFSETS, self.tails[index])
        if found is None:
            raise ValueError(_UNCOMMON)
        return int(found[1])


class Run(NamedTuple):
    """Consecutive tensors. layer: their number, None for those of no layer. text: a line for each, without the
    layer's name or what opens them. first: index of the first one."""

    layer: int | None
    text: bytes
    first: int

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """(index, what is written there)."""
        return enumerate(map(read_piece, self.text.split(b"\n")), self.first)


class Piece(NamedTuple):
    name: str
    dtype: str
    shape: Shape


def split_header(text: bytes) -> SplitHeader:
    """Raises ValueError for metadata with braces in it, too."""
    found = re.match(_START, text)
    if found is None or b"\n" in text:
        raise ValueError(_UNCOMMON)
    opening = b'}, "' if b'}, "' in text else b'},"'
    pieces = (opening[:-1] + text[found.end() :]).split(b"]")  # behind a shape, behind offsets
    heads, tails = pieces[:-1:2], pieces[1::2]
    if len(heads) != len(tails) or pieces[-1].rstrip() != b"}}":
        raise ValueError(_UNCOMMON)
    return SplitHeader(parsed(found[1] or b"{}"), opening, heads, tails)


def runs(header: SplitHeader) -> Iterator[Run]:
    """Layers have at most two digits here: a longer number stays in its names, which nobody knows then."""
    start = header.opening + header.prefix + b"layers."
    at, outside = 0, []
    for begins, group in groupby(header.heads, itemgetter(slice(len(start) + 2))):
        heads = list(group)
        if not begins.startswith(start):
            outside += heads
            continue
        if outside:
            yield Run(None, _lines(outside, header.opening), at)
            at, outside = at + len(outside), []
        number = begins[len(start) :].rstrip(b".")
        yield Run(int(number), _lines(heads, start + number + b"."), at)
        at += len(heads)
    if outside:
        yield Run(None, _lines(outside, header.opening), at)


def _lines(heads: Sequence[bytes], opening: bytes) -> bytes:
    return b"\n".join(heads).replace(opening, b"")


def read_piece(text: bytes) -> Piece:
    found = re.fullmatch(_PIECE, text)
    if found is None:
        raise ValueError(_UNCOMMON)
    shape = tuple(map(int, found[3].split(b","))) if found[3] else ()
    return Piece(found[1].decode(), found[2].decode(), shape)
