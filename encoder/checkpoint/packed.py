"""One packed weight: which packing its marker means, and whether everything that the packing needs stands beside it.

Contract: `open_packed(entries, name, shape, marker, block)` -> StoredWeight, or Refused with the reason. Nothing is
guessed: a packed weight is taken only where a marker (or the scales of HF block fp8) says how to read it and each of
its parts has the type and shape that this format has. Source: ComfyUI's quantised checkpoints, HF block fp8, GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch

from ..packing import Packing, Part
from ..packing.fp8 import BlockFp8, Fp8
from ..packing.ggml import Ggml
from ..packing.int8 import Int8
from ..packing.nvfp4 import BLOCK, Nvfp4
from ..packing.stacked import Stacked
from ..weights import EMBED_TOKENS, Shape
from .header import TensorEntry
from .markers import UNREADABLE, Marker
from .stored_weight import StoredWeight

INPUT_SCALE = "pre_quant_scale"
SCALES = (
    "weight_scale", "weight_scale_2", "weight_scale_inv", "scale_weight", "weight_s_rel", "weight_s_channel",
    "weight_codebook",
)  # fmt: skip
COMPANIONS = (*SCALES, INPUT_SCALE, "comfy_quant", "input_scale", "scale_input")  # the last two concern activations
SERVED = "nvfp4, int8, fp8, GGUF, bf16, fp16 or fp32"
USE_ANOTHER = (
    "Use the nvfp4_awq, int8_convrot or bf16 file of qwen3vl_32b_minimax_h3, a GGUF, or the official text_encoder "
    "folder."
)
_AGAIN = "Download the file again, or use another one."
_REFUSED = {
    "mxfp8": "mxfp8", "convrot_w4a4": "int4 convrot (convrot_w4a4)", "asym_w4a8_int8": "w4a8 (asym_w4a8_int8)",
}  # fmt: skip
_KINDS = {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8 or int4", "U8": "4-bit"}
_FP8_CODES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
_SPELLED = {
    torch.int8: ("I8",), torch.uint8: ("U8",), torch.float32: ("F32",), torch.float16: ("F16",),
    torch.bfloat16: ("BF16",),
    torch.float8_e4m3fn: ("F8_E4M3", "U8"), torch.float8_e5m2: ("F8_E5M2", "U8"),
}  # fmt: skip
PLAIN_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_GGUF_TYPE = re.compile(r"(I?Q|TQ|MXFP|NVFP)\d")


@dataclass(frozen=True)
class Refused:
    """Why a weight is not taken; weights that are refused alike share one message. `format`: what it is, for people."""

    format: str
    expected: str
    got: str
    what_to_do: str = _AGAIN


@dataclass(frozen=True)
class _Weight:
    """A packed weight and what stands beside it."""

    entries: Mapping[str, TensorEntry]
    layer: str
    entry: TensorEntry
    shape: Shape

    def beside(self, companion: str) -> TensorEntry | None:
        return self.entries.get(f"{self.layer}.{companion}")


def can_be_packed(name: str, shape: Shape) -> bool:
    """Linears and the token table; not norms, biases, the patch convolution or the position table."""
    return name.endswith(".weight") and len(shape) == 2 and not name.endswith("pos_embed.weight")


def open_packed(
    entries: Mapping[str, TensorEntry], name: str, shape: Shape, marker: Marker | None, block: tuple[int, int]
) -> StoredWeight | Refused:
    """The weight `name` of this shape, whose stored type is no plain float. block: of HF block fp8 scales."""
    weight = _Weight(entries, name.removesuffix(".weight"), entries[name], shape)
    if _GGUF_TYPE.match(weight.entry.dtype):
        return _from_gguf(weight, name)
    if not can_be_packed(name, shape):
        return Refused(weight.entry.dtype, "norms, biases and position tables in bf16, fp16 or fp32",
                       weight.entry.dtype)  # fmt: skip
    chosen = _choose(weight, marker, block)
    if isinstance(chosen, Refused):
        return chosen
    label, packing = chosen
    parts = packing.parts
    problem = _misfit(weight, label, parts) or _table_problem(name, label, packing)
    return problem or _stored(weight, label, packing, parts)


def _choose(weight: _Weight, marker: Marker | None, block: tuple[int, int]) -> tuple[str, Packing] | Refused:
    if marker is None:
        has_blocks = weight.entry.dtype == "F8_E4M3" and weight.beside("weight_scale_inv") is not None
        return _block_fp8(weight, block) if has_blocks else _unannounced(weight)
    if marker == UNREADABLE:
        return Refused("a marker that cannot be read", "a JSON marker with a format for each packed weight",
                       "one that cannot be read")  # fmt: skip
    if marker.format in _REFUSED:
        return _not_served(_REFUSED[marker.format])
    if marker.format not in _FORMATS:
        return _not_served(f"the unknown format {marker.format[:40]!r}")
    if marker.group and marker.format != "int8_tensorwise":
        return _not_served(f"rotated {marker.format} (convrot)")
    return _FORMATS[marker.format](weight, marker)


def _not_served(label: str) -> Refused:
    return Refused(label, f"{SERVED} weights", label, USE_ANOTHER)


def _unannounced(weight: _Weight) -> Refused:
    kind = _KINDS.get(weight.entry.dtype, weight.entry.dtype)
    scales = [name for name in SCALES if weight.beside(name) is not None]
    scale = weight.beside("weight_scale")
    if "weight_s_rel" in scales:
        return _not_served(_REFUSED["asym_w4a8_int8"])
    if kind == "fp8" and scale is not None and scale.dtype in ("U8", "F8_E8M0"):
        return _not_served("mxfp8")
    if not scales:
        return Refused(f"{kind} without a scale", f"a scale beside each {kind} weight", "weights without one",
                       f"Without it the weights mean nothing. {USE_ANOTHER}")  # fmt: skip
    return Refused(
        f"{kind} that is not announced",
        "packed weights that a comfy_quant marker or the header's _quantization_metadata announces",
        f"{weight.entry.dtype} weights with {' and '.join(scales)} and no marker",
        f"Nothing says how to read them. {USE_ANOTHER}",
    )


def _nvfp4(weight: _Weight, marker: Marker) -> tuple[str, Packing] | Refused:
    if weight.shape[1] % BLOCK:
        return Refused("nvfp4", f"nvfp4 rows in blocks of {BLOCK}", f"{weight.shape[1]} columns")
    return "nvfp4", Nvfp4(weight.shape)


def _int8(weight: _Weight, marker: Marker) -> tuple[str, Packing] | Refused:
    scale, group = weight.beside("weight_scale"), marker.group
    per_row = scale is not None and prod(scale.shape) != 1
    label = "int8 convrot" if group else "int8 per row"
    label = label if per_row else f"{label.removesuffix(' per row')} per tensor"
    if group not in (0, 4, 16, 64, 256, 1024) or (group and weight.shape[1] % group):
        return Refused(label, f"int8 rotated by groups of 4, 16, 64, 256 or 1024 of {weight.shape[1]} columns",
                       f"groups of {group}")  # fmt: skip
    return label, Int8(weight.shape, per_row=per_row, group=group)


def _fp8(weight: _Weight, marker: Marker) -> tuple[str, Packing] | Refused:
    name = "scale_weight" if marker.legacy else "weight_scale"
    scale = weight.beside(name)
    per_row = scale is not None and prod(scale.shape) != 1
    label = ("fp8 e5m2" if marker.format == "float8_e5m2" else "fp8") + (" per row" if per_row else " per tensor")
    shape = (weight.shape[0], 1) if per_row else ()
    return label, Fp8(weight.shape, _FP8_CODES[marker.format], shape, name)


def _block_fp8(weight: _Weight, block: tuple[int, int]) -> tuple[str, Packing]:
    scale = weight.beside("weight_scale_inv")
    dtype = torch.bfloat16 if scale.dtype == "BF16" else torch.float32
    return f"fp8 by blocks of {block[0]} x {block[1]}", BlockFp8(weight.shape, block, dtype)


_FORMATS: dict[str, Callable[[_Weight, Marker], tuple[str, Packing] | Refused]] = {
    "nvfp4": _nvfp4, "int8_tensorwise": _int8, "float8_e4m3fn": _fp8, "float8_e5m2": _fp8,
}  # fmt: skip


def _misfit(weight: _Weight, label: str, parts: Mapping[str, Part]) -> Refused | None:
    """Each part in its type and shape, and no scale that this format does not have."""
    for name, part in parts.items():
        entry = weight.beside(name)
        if entry is None:
            bare = f"{label.split(' per ')[0]} without its scale"
            return Refused(bare, f"{_scales(parts)} beside each {label} weight", f"no {name}",
                           f"Without it the weights mean nothing. {_AGAIN}")  # fmt: skip
        if not _fits(entry, part, exactly=name == "weight"):
            return Refused(label, f"{name} as {_SPELLED[part.dtype][0]} {list(part.shape)} for {label} weights "
                           f"{list(weight.shape)}", f"{entry.dtype} {list(entry.shape)}")  # fmt: skip
    surplus = [name for name in SCALES if name not in parts and weight.beside(name) is not None]
    return (
        Refused(label, f"{_scales(parts)} beside {label} weights", f"{' and '.join(surplus)} too") if surplus else None
    )


def _scales(parts: Mapping[str, Part]) -> str:
    return " and ".join(name for name in parts if name != "weight")


def _fits(entry: TensorEntry, part: Part, exactly: bool) -> bool:
    """Scales may be written flat, or with axes of 1 more or less."""
    if entry.dtype not in _SPELLED[part.dtype] or prod(entry.shape) != prod(part.shape):
        return False
    stored, expected = (tuple(n for n in shape if n != 1) for shape in (entry.shape, part.shape))
    return entry.shape == part.shape if exactly else stored == expected or len(stored) <= 1


def _table_problem(name: str, label: str, packing: Packing) -> Refused | None:
    """Rows of the token table are looked up one by one."""
    if name != EMBED_TOKENS or packing.rows_apart:
        return None
    return Refused(label, "a token table in int8, fp8, GGUF blocks or plain", label, USE_ANOTHER)


def _stored(weight: _Weight, label: str, packing: Packing, names: Iterable[str]) -> StoredWeight | Refused:
    """With AWQ's scale of the input, where there is one."""
    scale = weight.beside(INPUT_SCALE)
    wanted = f"{INPUT_SCALE} as bf16, fp16 or fp32 [{weight.shape[1]}]"
    if scale is not None and weight.layer + ".weight" == EMBED_TOKENS:
        return Refused(label, "a token table without pre_quant_scale", "one with it")
    if scale is not None and (scale.dtype not in ("BF16", "F16", "F32") or scale.shape != weight.shape[1:]):
        return Refused(label, wanted, f"{scale.dtype} {list(scale.shape)}")
    return StoredWeight(label, packing, {name: weight.beside(name) for name in names}, scale)


def _from_gguf(weight: _Weight, name: str) -> StoredWeight | Refused:
    entry = weight.entry
    if entry.shape != weight.shape or len(weight.shape) < 2:
        wanted = (
            "norms and biases in bf16, fp16 or fp32" if len(weight.shape) < 2 else f"the shape {list(weight.shape)}"
        )
        return Refused(entry.dtype, wanted, f"{entry.dtype} {list(entry.shape)}")
    try:
        packing = Ggml(weight.shape, entry.dtype)
    except ValueError as error:
        said, _, got = str(error).partition(", got ")
        got, _, what_to_do = got.partition(". ")
        return Refused(entry.dtype, said.partition("expected ")[2], got, what_to_do)
    expected = packing.parts["weight"].nbytes
    if entry.nbytes != expected:
        return Refused(entry.dtype, f"{expected:,} bytes of {entry.dtype}", f"{entry.nbytes:,}")
    return _table_problem(name, entry.dtype, packing) or StoredWeight(entry.dtype, packing, {"weight": entry})


def open_stacked(entries: Mapping[str, TensorEntry], name: str, shape: Shape, label: str) -> StoredWeight | Refused:
    """A plain weight in slices along its time axis, "weight", "weight.1": llama.cpp's patch embedding."""
    packing = Stacked(shape, PLAIN_TYPES[entries[name].dtype])
    parts = {part: entries.get(name.removesuffix("weight") + part) for part in packing.parts}
    wrong = [e for part, e in parts.items() if e is None or not _fits(e, packing.parts[part], exactly=True)]
    if not wrong:
        return StoredWeight(label, packing, parts)
    slice_shape = list(packing.parts["weight"].shape)
    got = "none" if wrong[0] is None else f"{wrong[0].dtype} {list(wrong[0].shape)}"
    return Refused(label, f"{len(parts)} slices as {entries[name].dtype} {slice_shape}", got)
