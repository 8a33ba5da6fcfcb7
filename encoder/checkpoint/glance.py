"""Whether a single .safetensors file is MiniMax H3's encoder, told from its header's bytes in about a millisecond.

Contract: `glance(path)` -> True, False, or None where only `inspect_checkpoint` can tell; where it answers, it is
`inspect_checkpoint(path).is_h3`, for lists of many files. Layers that are written alike are judged by the first of
them. Three things are left to the inspection, which every chosen file meets: offsets that contradict each other,
markers of equal size that differ from layer to layer, and headers of more than 32 MB, which are no encoder here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from ..config import EncoderConfig
from ..regular import is_folder
from ..tap import HIDDEN_SIZE, SELECTED_LAYER
from ..weights import EMBED_TOKENS, Shape, is_unneeded
from .catalog import DEMO_KEY, Catalog, check_whole
from .config_file import CONFIG
from .fit import needed_shapes
from .formats import PLAIN_FORMATS, resolve
from .header import DTYPE_BYTES, TensorEntry, read_text
from .identity import FOREIGN_MARKS, VISION_TENSORS
from .markers import METADATA
from .names import released_name
from .packed import COMPANIONS
from .written import Piece, Run, SplitHeader, runs, split_header

_MOST_BYTES = 1 << 25  # of a header; real ones have up to 1 MB
_MOST_KINDS = 8  # of layers that are stored in different ways
_LAYERS = "model.language_model.layers."
_TELLING = (
    EMBED_TOKENS, *(f"{_LAYERS}0.{name}.weight" for name in ("self_attn.q_norm", "self_attn.q_proj",
                                                             "self_attn.k_proj", "mlp.gate_proj")),
)  # fmt: skip
_KEY = rb'"[^"\\]*"\s*:\s*\{'
_NORM = b'layers.0.input_layernorm.weight"'
_NORM_SHAPE = rb'\s*:\s*\{[^{}]*"shape"\s*:\s*\[\s*(\d+)\s*\]'
_OTHER = "glance: expected an encoder as it is usually stored, got another file. Inspect it instead."
_LAYOUTS = {b"model.language_model.": "official", b"model.": "comfyui", b"": "bare"}


def glance(path: Path) -> bool | None:
    """Whether `path` is H3's encoder. Never raises for what a file can hold."""
    if is_folder(path) or path.suffix.lower() == ".gguf":
        return None
    try:
        check_whole(path)
        size, text = read_text(path, _MOST_BYTES)
    except (ValueError, OSError):
        return False
    if (b"\\" in text and b"\\u00" in text) or b"\0" in text[:4]:
        return None  # names may be written in escapes, or in UTF-16
    if b"layers.%d." % (SELECTED_LAYER - 1) not in text:
        return False
    lone = not (path.parent / CONFIG).exists()
    if lone and _is_h3(path, size, text):
        return True
    return False if _is_foreign(text, lone) else None


def _is_foreign(text: bytes, lone: bool) -> bool:
    """A tensor that only other models have, or another width. lone: no config.json beside."""
    if any(_is_in_name(text, mark.encode()) for mark, _ in FOREIGN_MARKS):
        return True
    at = text.find(_NORM)
    once = at >= 0 and text.find(_NORM, at + 1) < 0
    shape = re.compile(_NORM_SHAPE).match(text, at + len(_NORM)) if once else None
    demo = not lone or DEMO_KEY.encode() in text  # demonstrations have another width
    return shape is not None and not demo and int(shape[1]) != HIDDEN_SIZE


def _is_in_name(text: bytes, mark: bytes) -> bool:
    """Whether the first place that has `mark` is the name of a tensor."""
    at = text.find(mark)
    return at >= 0 and re.compile(_KEY).match(text, text.rfind(b'"', 0, at)) is not None


def _is_h3(path: Path, size: int, text: bytes) -> bool:
    """False also for what is not written or stored in a common way."""
    try:
        return _judge(path, size, text)
    except (ValueError, OSError):
        return False


def _judge(path: Path, size: int, text: bytes) -> bool:
    """Raises ValueError or OSError where it is no encoder, or may be one that is written in another way."""
    header, start = split_header(text), 8 + len(text)
    said, layout = header.metadata, _LAYOUTS.get(header.prefix)
    silent = not {"config", DEMO_KEY, METADATA} & said.keys() and all(isinstance(v, str) for v in said.values())
    if layout is None or not silent:
        return False
    kinds, between = _gathered(header)
    named = _Named(path, layout, header, start)
    outside = _outside(tuple(between))
    entries = dict(named.entry(piece.name, piece, index) for index, piece in outside.others)
    counted = sum(entry.nbytes for entry in entries.values()) + outside.vision_bytes
    firsts = []
    for layers in kinds.values():
        number = layers[0][0].layer
        pieces = [found for run in layers[0] for found in run.pieces()]
        prefix = f"{header.prefix.decode()}layers.{number}."
        found = dict(named.entry(prefix + piece.name, piece, index) for index, piece in pieces)
        if len(found) != len(pieces):
            return False
        entries |= found
        counted += len(layers) * sum(entry.nbytes for entry in found.values())
        firsts.append(number)
    if start + counted != size:
        return False  # cut short, or damaged
    needed = _needed(layout, outside, tuple((name, entries[name].shape) for name in _TELLING if name in entries))
    return _fits(Catalog(path, layout, entries, None, {}, (path,)), needed, firsts)


@dataclass(frozen=True)
class _Named:
    """Pieces of one file as entries."""

    path: Path
    layout: str
    header: SplitHeader
    start: int

    def entry(self, name: str, piece: Piece, index: int) -> tuple[str, TensorEntry]:
        offset = self.start + self.header.begin(index)
        entry = TensorEntry(self.path, name, piece.dtype, piece.shape, _bytes(piece), offset)
        return released_name(name, self.layout), entry


def _bytes(piece: Piece) -> int:
    if piece.dtype not in DTYPE_BYTES:
        raise ValueError(_OTHER)
    return prod(piece.shape) * DTYPE_BYTES[piece.dtype]


@dataclass(frozen=True, eq=False)
class _Outside:
    """Tensors of no layer: vision, and others with their index."""

    vision: tuple[Piece, ...]
    others: tuple[tuple[int, Piece], ...]
    vision_bytes: int


@lru_cache(maxsize=16)
def _outside(found: tuple[Run, ...]) -> _Outside:
    """Quantisers leave the tower alone: many files have the same."""
    pieces = [piece for run in found for piece in run.pieces()]
    if len({piece.name for _, piece in pieces}) != len(pieces):
        raise ValueError(_OTHER)
    vision = tuple(piece for _, piece in pieces if "visual." in piece.name)
    others = tuple((index, piece) for index, piece in pieces if "visual." not in piece.name)
    return _Outside(vision, others, sum(map(_bytes, vision)))


@lru_cache(maxsize=16)
def _needed(layout: str, outside: _Outside, telling: tuple[tuple[str, Shape], ...]) -> dict[str, Shape]:
    """{released name: shape} of the token table and of the first layer, where the vision tower is whole."""
    vision = outside.vision
    found = {released_name(piece.name, layout): piece.shape for piece in vision}
    config = EncoderConfig.from_shapes(found | dict(telling))
    needed = needed_shapes(config, tap_layer=1)
    tower = {name: shape for name, shape in needed.items() if name.startswith("model.visual.")}
    plain = all(piece.dtype in PLAIN_FORMATS for piece in vision)
    vision_config = config.vision
    whole = plain and found == tower and len(vision) == len(found) >= VISION_TENSORS
    if (
        not whole
        or not vision_config
        or not vision_config.deepstack_visual_indexes
        or config.text.hidden_size != HIDDEN_SIZE
    ):
        raise ValueError(_OTHER)
    return {name: shape for name, shape in needed.items() if name not in tower}


def _fits(catalog: Catalog, needed: Mapping[str, Shape], firsts: Iterable[int]) -> bool:
    """Whether all that is needed is there, in formats that are served, and nothing that is unknown."""
    first = _LAYERS + "0."
    of_layer = {name[len(first) :]: shape for name, shape in needed.items() if name.startswith(first)}
    of_layers = {f"{_LAYERS}{number}.{name}": shape for number in firsts for name, shape in of_layer.items()}
    wanted = {**needed, **of_layers}
    return all(_is_known(name, wanted) for name in catalog.entries) and not resolve(catalog, wanted).problems


def _is_known(name: str, needed: Mapping[str, Shape]) -> bool:
    layer, _, part = name.rpartition(".")
    return name in needed or (part in COMPANIONS and f"{layer}.weight" in needed) or is_unneeded(name, SELECTED_LAYER)


def _gathered(header: SplitHeader) -> tuple[dict[tuple[bytes, ...], list[list[Run]]], list[Run]]:
    """({what layers of one kind hold: their runs}, what is outside of layers)."""
    layers: dict[int, list[Run]] = defaultdict(list)
    outside = []
    for run in runs(header):
        (outside if run.layer is None else layers[run.layer]).append(run)
    if layers.keys() != set(range(len(layers))) or len(layers) < SELECTED_LAYER:
        raise ValueError(_OTHER)
    kinds = defaultdict(list)
    for number in range(len(layers)):
        kinds[tuple(run.text for run in layers[number])].append(layers[number])
    if len(kinds) > _MOST_KINDS:
        raise ValueError(_OTHER)
    return kinds, outside
