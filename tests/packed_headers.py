"""Packed checkpoints for tests: the headers and markers that quantised files have, with holes instead of data.

Contract: `PACKED[kind](config)` -> Tensors in ComfyUI's names; `write_packed` writes them. Scales and codes are laid
out as the released files have them, to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from h3te_tests.checkpoint_files import INDEX, Stored, comfyui_name, stored, write_json, write_sparse

LINEARS = ("_proj.weight",)
AWQ_LINEARS = (".o_proj", ".down_proj")  # the others have AWQ's scale folded into the norm before them
EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True)
class Tensors:
    """What a file holds: tensors, contents of the tiny ones, header metadata."""

    tensors: dict[str, Stored]
    contents: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, str] | None = None

    def without(self, *endings: str) -> Tensors:
        kept = {name: t for name, t in self.tensors.items() if not name.endswith(endings)}
        return replace(self, tensors=kept, contents={n: c for n, c in self.contents.items() if n in kept})

    def with_tensors(self, **changes: Stored) -> Tensors:
        return replace(self, tensors=self.tensors | changes)

    def mark(self, layer: str, **marker) -> Tensors:
        """A comfy_quant marker beside `layer`."""
        text = json.dumps(marker).encode()
        name = layer + ".comfy_quant"
        return replace(self, tensors=self.tensors | {name: ("U8", (len(text),))}, contents=self.contents | {name: text})

    @property
    def nbytes(self) -> int:
        size = {"BF16": 2, "F16": 2, "F32": 4}
        return sum(prod(shape) * size.get(dtype, 1) for dtype, shape in self.tensors.values())


def write_packed(path: Path, tensors: Tensors, short_by: int = 0) -> Path:
    return write_sparse(path, tensors.tensors, tensors.metadata, short_by, tensors.contents)


def linears(config: dict, rename: Callable[[str], str] = comfyui_name) -> dict[str, tuple[int, int]]:
    """{layer name: [N, K]} of the decoder's linears."""
    found = stored(config, rename=rename)
    return {n.removesuffix(".weight"): shape for n, (_, shape) in found.items() if n.endswith(LINEARS)}


def plain(config: dict) -> Tensors:
    return Tensors(stored(config))


def packed(config: dict, parts: Callable[[str, int, int], Mapping[str, Stored]], marker: dict | None) -> Tensors:
    """`parts(layer, N, K)` stand beside each decoder linear, its weight among them; `marker` announces each."""
    tensors, contents = stored(config), {}
    for layer, (rows, columns) in linears(config).items():
        tensors |= {f"{layer}.{part}": value for part, value in parts(layer, rows, columns).items()}
        if marker is not None:
            contents[layer + ".comfy_quant"] = json.dumps(marker).encode()
    tensors |= {name: ("U8", (len(text),)) for name, text in contents.items()}
    return Tensors(tensors, contents)


def nvfp4_parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
    padded = (-(-rows // 128) * 128, -(-(columns // 16) // 4) * 4)
    return {"weight": ("U8", (rows, columns // 2)), "weight_scale": ("F8_E4M3", padded), "weight_scale_2": ("F32", ())}


def _awq_parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
    scale = {"pre_quant_scale": ("BF16", (columns,))} if layer.endswith(AWQ_LINEARS) else {}
    return nvfp4_parts(layer, rows, columns) | scale


def nvfp4_awq(config: dict) -> Tensors:
    """ComfyUI's default file: nvfp4 with AWQ's scales, the token table in int8."""
    found = packed(config, _awq_parts, {"format": "nvfp4", "full_precision_matrix_mult": True})
    rows, columns = found.tensors[EMBEDDING + ".weight"][1]
    table = {EMBEDDING + ".weight": ("I8", (rows, columns)), EMBEDDING + ".weight_scale": ("F32", (rows, 1))}
    return replace(found, tensors=found.tensors | table).mark(EMBEDDING, format="int8_tensorwise")


def nvfp4(config: dict) -> Tensors:
    return packed(config, nvfp4_parts, {"format": "nvfp4"})


def _per_row(dtype: str):
    return lambda layer, rows, columns: {"weight": (dtype, (rows, columns)), "weight_scale": ("F32", (rows, 1))}


def _per_tensor(dtype: str, scale: str = "weight_scale", shape: tuple[int, ...] = ()):
    return lambda layer, rows, columns: {"weight": (dtype, (rows, columns)), scale: ("F32", shape)}


def int8_convrot(config: dict) -> Tensors:
    marker = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}
    return packed(config, _per_row("I8"), marker)


def fp8_metadata(config: dict) -> Tensors:
    """Announced by the header's metadata."""
    layers = {layer: {"format": "float8_e4m3fn"} for layer in linears(config)}
    text = json.dumps({"format_version": "1.0", "layers": layers})
    return replace(packed(config, _per_tensor("F8_E4M3"), None), metadata={"_quantization_metadata": text})


def fp8_legacy(config: dict) -> Tensors:
    """Announced by a tensor scaled_fp8, scales in their older names."""

    def parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
        return _per_tensor("F8_E4M3", "scale_weight", (1,))(layer, rows, columns) | {"scale_input": ("F32", (1,))}

    found = packed(config, parts, None)
    return found.with_tensors(scaled_fp8=("F8_E4M3", (2,)))


def fp8_blocks(config: dict) -> Tensors:
    def parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
        blocks = (-(-rows // 128), -(-columns // 128))
        return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale_inv": ("BF16", blocks)}

    return packed(config, parts, None)


def mxfp8(config: dict) -> Tensors:
    def parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
        return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": ("U8", (rows, columns // 32))}

    return packed(config, parts, {"format": "mxfp8"})


def int4_convrot(config: dict) -> Tensors:
    def parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
        return {"weight": ("I8", (rows, columns // 2)), "weight_scale": ("F32", (rows,))}

    return packed(config, parts, {"format": "convrot_w4a4", "convrot_groupsize": 256})


def w4a8(config: dict) -> Tensors:
    def parts(layer: str, rows: int, columns: int) -> dict[str, Stored]:
        return {
            "weight": ("I8", (rows, columns // 2)), "weight_s_rel": ("F8_E4M3", (rows, columns // 16)),
            "weight_s_channel": ("F32", (rows,)), "weight_codebook": ("F32", (16,)),
        }  # fmt: skip

    return packed(config, parts, {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": 256})


PACKED: dict[str, Callable[[dict], Tensors]] = {
    "bf16": plain, "nvfp4_awq": nvfp4_awq, "nvfp4": nvfp4, "int8_convrot": int8_convrot,
    "int8_row": lambda config: packed(config, _per_row("I8"), {"format": "int8_tensorwise"}),
    "int8_tensor": lambda config: packed(config, _per_tensor("I8"), {"format": "int8_tensorwise"}),
    "fp8": lambda config: packed(config, _per_tensor("F8_E4M3"), {"format": "float8_e4m3fn"}),
    "fp8_row": lambda config: packed(config, _per_row("F8_E4M3"), {"format": "float8_e4m3fn"}),
    "fp8_e5m2": lambda config: packed(config, _per_tensor("F8_E5M2"), {"format": "float8_e5m2"}),
    "fp8_metadata": fp8_metadata, "fp8_legacy": fp8_legacy, "fp8_blocks": fp8_blocks,
    "mxfp8": mxfp8, "int4_convrot": int4_convrot, "w4a8": w4a8,
}  # fmt: skip


def block_fp8_folder(folder: Path, config: dict, quantization_config: dict) -> Path:
    """The official layout as Hugging Face's FP8 folders have it, in one shard."""
    tensors = packed(config, lambda *_: {}, None).tensors
    for layer, (rows, columns) in linears(config).items():
        tensors[layer + ".weight"] = ("F8_E4M3", (rows, columns))
        tensors[layer + ".weight_scale_inv"] = ("F32", (-(-rows // 128), -(-columns // 128)))
    official = {
        n.replace("visual.", "model.visual.") if n.startswith("visual.") else f"model.language_model.{n[6:]}": t
        for n, t in tensors.items()
    }
    write_sparse(folder / "model.safetensors", official)
    write_json(folder / "config.json", config | {"quantization_config": quantization_config})
    write_json(folder / INDEX, {"weight_map": dict.fromkeys(official, "model.safetensors")})
    return folder
