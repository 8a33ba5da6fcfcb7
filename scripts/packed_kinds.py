"""What each kind of packed checkpoint holds for one weight of the released model: names, types and markers as in files.

Contract: `KINDS`, and `stored_tensors(kind, name, weight)` -> {name in the file: tensor} for one released weight. A
meta tensor gives meta tensors, so that a header can be planned. Layers are independent of each other: AWQ factors come
from names, so the norms that absorb them can be written without the matrices that follow.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from quantise import Tensors, marker, quantise

LINEAR = re.compile(r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj\.weight$")
EMBEDDING = "model.language_model.embed_tokens.weight"
_NORM = re.compile(r"\.(input|post_attention)_layernorm\.weight$")
Pack = Callable[..., Tensors]  # (weight) or (weight, divisor=...) -> {suffix: tensor}


@dataclass(frozen=True)
class Kind:
    """`linear`, `embedding`: how their weights are stored, None for bf16. `official`: released names instead of
    ComfyUI's; `whole`: a folder with every tensor of the source; `served`: False for what the pack refuses."""

    linear: Pack | None = None
    embedding: Pack | None = None
    awq: bool = False
    official: bool = False
    whole: bool = False
    vision: bool = True
    in_header: bool = False  # formats named in the header's metadata instead of markers
    mark: str | None = None  # a tensor beside the layers that announces the format
    served: bool = True


def stored_tensors(kind: Kind, name: str, weight: torch.Tensor) -> Tensors:
    """The tensors that a file of `kind` holds for the released weight `name`."""
    stored = name if kind.official else comfyui_name(name)
    layer = stored.removesuffix(".weight")
    pack = kind.linear if LINEAR.match(name) else kind.embedding if name == EMBEDDING else None
    if pack is None:
        return {stored: _folded(name, weight) if kind.awq and _NORM.search(name) else weight.bfloat16()}
    if not kind.awq or name == EMBEDDING:
        return {f"{layer}.{suffix}": tensor for suffix, tensor in pack(weight).items()}
    factor = awq_factor(name, weight.shape[1])
    parts = pack(weight, divisor=factor)
    if name.endswith(("o_proj.weight", "down_proj.weight")):  # no norm before them takes the factor in
        parts["pre_quant_scale"] = factor
    return {f"{layer}.{suffix}": tensor for suffix, tensor in parts.items()}


def comfyui_name(name: str) -> str:
    """A released name as ComfyUI's single files spell it."""
    return name.replace("model.visual.", "visual.", 1).replace("model.language_model.", "model.", 1)


def awq_factor(name: str, columns: int) -> torch.Tensor:
    """bfloat16 [columns], 0.6 to 1.7: what the input of the linear `name` is multiplied by, its columns divided by.

    Linears that read the same norm share one. Real files choose factors by activations; these are drawn from the name.
    """
    name = re.sub(r"self_attn\.[qkv]_proj", "input_layernorm", name)
    name = re.sub(r"mlp\.(gate|up)_proj", "post_attention_layernorm", name)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.exp2(torch.rand(columns, generator=generator) * 1.5 - 0.75).bfloat16()


def _folded(name: str, norm: torch.Tensor) -> torch.Tensor:
    """A norm's weight that takes in the factor of the linears behind it."""
    return (norm.float() * awq_factor(name, len(norm)).float().to(norm.device)).bfloat16()


def header_metadata(kind: Kind, names: Iterable[str]) -> dict[str, str]:
    """What a header says about the formats of these released weights."""
    if not kind.in_header:
        return {}
    layers = [comfyui_name(name).removesuffix(".weight") for name in names if LINEAR.match(name)]
    formats = {layer: {"format": "float8_e4m3fn"} for layer in layers}
    return {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": formats})}


def marks(kind: Kind) -> Tensors:
    """Tensors that belong to no layer."""
    return {kind.mark: torch.zeros(2, dtype=torch.float8_e4m3fn)} if kind.mark else {}


def _unmarked(format: str, weight: torch.Tensor) -> Tensors:
    return {suffix: tensor for suffix, tensor in quantise(format, weight).items() if suffix != "comfy_quant"}


def _legacy(weight: torch.Tensor) -> Tensors:
    stored = _unmarked("fp8", weight)
    one = torch.ones(1)
    return {"weight": stored["weight"], "scale_weight": stored["weight_scale"].reshape(1), "scale_input": one}


def _blank(settings: dict, parts: dict[str, tuple], weight: torch.Tensor) -> Tensors:
    """Zeros in the types and shapes of a format that the pack refuses by name; `parts`: suffix -> (type, shape)."""
    rows, columns = weight.shape
    blanks = {
        suffix: torch.zeros(shape(rows, columns), dtype=dtype, device=weight.device)
        for suffix, (dtype, shape) in parts.items()
    }
    return {**blanks, "comfy_quant": marker(**settings)}


def _tiled(rows: int, columns: int) -> tuple[int, int]:
    return math.ceil(rows / 128) * 128, math.ceil(columns / 32 / 4) * 4


_HALF = (torch.int8, lambda rows, columns: (rows, columns // 2))
_A_ROW = (torch.float32, lambda rows, columns: (rows,))
_MXFP8 = {"weight": (torch.float8_e4m3fn, lambda rows, columns: (rows, columns)), "weight_scale": (torch.uint8, _tiled)}
_W4A8 = {
    "weight": _HALF,
    "weight_s_rel": (torch.float8_e4m3fn, lambda rows, columns: (rows, columns // 16)),
    "weight_s_channel": _A_ROW,
    "weight_codebook": (torch.float32, lambda rows, columns: (16,)),
}
_INT4 = {"format": "convrot_w4a4", "convrot_groupsize": 256}
_W4 = {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": 256}

KINDS: dict[str, Kind] = {
    "bf16": Kind(),
    "nvfp4_awq": Kind(partial(quantise, "nvfp4"), partial(quantise, "int8_row"), awq=True),
    "nvfp4": Kind(partial(quantise, "nvfp4")),
    "int8_convrot": Kind(partial(quantise, "int8_convrot")),
    "int8_row": Kind(partial(quantise, "int8_row")),
    "int8_tensor": Kind(partial(quantise, "int8_tensor")),
    "fp8": Kind(partial(quantise, "fp8")),
    "fp8_e5m2": Kind(partial(quantise, "fp8_e5m2")),
    "fp8_header": Kind(partial(_unmarked, "fp8"), in_header=True),
    "fp8_legacy": Kind(_legacy, mark="scaled_fp8"),
    "hf_block_fp8": Kind(partial(quantise, "hf_block_fp8"), official=True, whole=True),
    "mxfp8": Kind(partial(_blank, {"format": "mxfp8"}, _MXFP8), served=False),
    "int4_convrot": Kind(partial(_blank, _INT4, {"weight": _HALF, "weight_scale": _A_ROW}), served=False),
    "w4a8": Kind(partial(_blank, _W4, _W4A8), served=False),
    "lightx2v_fp8": Kind(partial(_unmarked, "fp8_row"), official=True, vision=False, served=False),
}
