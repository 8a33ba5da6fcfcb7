"""Which weight of which format is cut, widened to whole blocks or kept whole, at 2, 4 and 8 ranks, and what that takes.

Contract: `cut_table()` is a page in Markdown, computed from the released dimensions and the packings themselves by the
very cuts that a rank reads with. `share(name, stored, shape, parallel)` is what a rank keeps of one stored weight, and
`rank_bytes(weights, shapes, size)` what each rank reads of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..checkpoint.files import STORED_TYPES
from ..checkpoint.fit import needed_shapes
from ..checkpoint.header import TensorEntry
from ..checkpoint.stored_weight import StoredWeight
from ..config import EncoderConfig, TextConfig, VisionConfig
from ..packing import Packing
from ..packing.cutting import Trimmed
from ..packing.fp8 import BlockFp8, Fp8
from ..packing.ggml import Ggml
from ..packing.int8 import Int8
from ..packing.nvfp4 import Nvfp4
from ..weights import EMBED_TOKENS, Shape
from .cuts import AXES, Cuts, axis_of
from .group import TensorParallel

TAP_LAYER = 50
RANKS = (2, 4, 8)
RELEASED = EncoderConfig(
    TextConfig(5120, 25600, 64, 64, 8, 128, 151_936),
    VisionConfig(1152, 4304, 27, 16, 5120, 2304, (8, 16, 24)),
)
_LAYER = "model.language_model.layers.0."
_AXIS = {0: "rows", 1: "columns"}
_SPELLED = {dtype: name for name, dtype in STORED_TYPES.items()}
Packed = Callable[[Shape], Packing]


@dataclass(frozen=True)
class Format:
    """How the decoder's linears and the token table are stored; None: bf16. awq: o and down with a scale [K]."""

    linear: Packed | None = None
    table: Packed | None = None
    awq: bool = False


def _fp8_rows(shape: Shape) -> Packing:
    return Fp8(shape, scale_shape=(shape[0], 1))


def _gguf(linear: str, table: str) -> Format:
    return Format(partial(Ggml, type=linear), partial(Ggml, type=table))


FORMATS = {
    "bf16, fp16": Format(),
    "nvfp4_awq": Format(Nvfp4, Int8, awq=True),
    "int8 convrot": Format(partial(Int8, group=256)),
    "int8 per row": Format(Int8),
    "int8 per tensor": Format(partial(Int8, per_row=False)),
    "fp8 per tensor": Format(Fp8),
    "fp8 per row": Format(_fp8_rows),
    "fp8 by blocks of 128 x 128": Format(BlockFp8),
    "GGUF Q8_0": _gguf("Q8_0", "Q8_0"),
    "GGUF Q4_0": _gguf("Q4_0", "Q8_0"),
    "GGUF Q6_K": _gguf("Q6_K", "Q6_K"),
    "GGUF Q4_K": _gguf("Q4_K", "Q6_K"),
}


def share(name: str, stored: StoredWeight, shape: Shape, parallel: TensorParallel) -> StoredWeight:
    """What one rank keeps of the weight `name` of this (whole) shape."""
    span = Cuts(parallel).span(name, shape)
    return stored if span is None else stored.cut(span.axis, span.start, span.stop)


def rank_bytes(weights: Mapping[str, StoredWeight], shapes: Mapping[str, Shape], size: int) -> list[int]:
    """Bytes of all weights that each of `size` ranks keeps, as stored."""
    ranks = [TensorParallel(rank, size) for rank in range(size)]
    return [sum(share(n, stored, shapes[n], rank).nbytes for n, stored in weights.items()) for rank in ranks]


def stored_weights(format: Format, shapes: Mapping[str, Shape]) -> dict[str, StoredWeight]:
    """The weights as a file of that format holds them, without a file."""
    return {name: _stored(format, name, shape) for name, shape in shapes.items()}


def _stored(format: Format, name: str, shape: Shape) -> StoredWeight:
    pack = format.table if name == EMBED_TOKENS else format.linear if axis_of(name) is not None else None
    if pack is None:
        return StoredWeight("bf16", None, {"weight": _entry("weight", torch.bfloat16, shape)})
    packing = pack(shape)
    parts = {part: _entry(part, p.dtype, p.shape) for part, p in packing.parts.items()}
    scale = _entry("pre_quant_scale", torch.bfloat16, shape[1:]) if format.awq and axis_of(name) == 1 else None
    return StoredWeight(packing.name, packing, parts, scale)


def _entry(name: str, dtype: torch.dtype, shape: Shape) -> TensorEntry:
    nbytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
    return TensorEntry(Path("-"), name, _SPELLED[dtype], shape, nbytes)


def how(name: str, stored: StoredWeight, shape: Shape, size: int) -> str:
    """In words, what `size` ranks do with a weight that is to be cut."""
    each = [share(name, stored, shape, TensorParallel(rank, size)) for rank in range(size)]
    trimmed = [own.packing for own in each if isinstance(own.packing, Trimmed)]
    if not trimmed:
        return "exact"
    if any(packing.inner == stored.packing for packing in trimmed):
        return "whole on each rank"
    extra = sum(own.nbytes for own in each) / stored.nbytes - 1
    return f"widened, +{extra:.1%}"


def cut_table(config: EncoderConfig = RELEASED, ranks: Sequence[int] = RANKS) -> str:
    """Two tables: what happens to each kind of weight, and gigabytes."""
    shapes = needed_shapes(config, min(TAP_LAYER, config.text.num_hidden_layers))
    every = {label: stored_weights(format, shapes) for label, format in FORMATS.items()}
    over = " | ".join(f"{size} ranks" for size in ranks)
    cuts = [f"| format | weights | cut | {over} |", "|" + "---|" * (3 + len(ranks))]
    cuts += [row for label, weights in every.items() for row in _cut_rows(label, weights, shapes, ranks)]
    sizes = [f"| format | 1 rank | {over} | read by all, {' / '.join(map(str, ranks))} ranks |"]
    sizes += ["|" + "---|" * (3 + len(ranks)), *(_size_row(n, w, shapes, ranks) for n, w in every.items())]
    return "\n".join([*cuts, "", *sizes]) + "\n"


def _cut_rows(
    label: str, weights: Mapping[str, StoredWeight], shapes: Mapping[str, Shape], ranks: Sequence[int]
) -> Iterator[str]:
    """Weights that fare alike share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for kind, axis in AXES.items():
        name = EMBED_TOKENS if kind == "embed_tokens" else f"{_LAYER}{kind}.weight"
        cells = (_AXIS[axis], *(how(name, weights[name], shapes[name], size) for size in ranks))
        alike.setdefault(cells, []).append(kind.rpartition(".")[2].removesuffix("_proj"))
    for cells, kinds in alike.items():
        yield f"| {label} | {', '.join(kinds)} | {' | '.join(cells)} |"


def _size_row(
    label: str, weights: Mapping[str, StoredWeight], shapes: Mapping[str, Shape], ranks: Sequence[int]
) -> str:
    whole = sum(stored.nbytes for stored in weights.values())
    each = [rank_bytes(weights, shapes, size) for size in ranks]
    largest = " | ".join(_gigabytes(max(found)) for found in each)
    return f"| {label} | {_gigabytes(whole)} | {largest} | {' / '.join(_gigabytes(sum(found)) for found in each)} |"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
