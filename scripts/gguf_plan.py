"""What the GGUF files of each family hold: names, types and shapes of tensors, and key-values.

`plan(config, shapes, family, types)`. Families: A has ComfyUI's names, no key-values and vision inside; B the same
names, an architecture, and vision matrices flattened into rows of 256 before packing (`comfy.gguf.orig_shape.<tensor>`
keeps their shape); C has llama.cpp's names and key-values, and a second file for vision. Norms and biases stay F32. A
type whose blocks do not divide a row gives way to F16. llama.cpp's names come from the `gguf` package's own table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import gguf
import numpy as np

FAMILIES = ("A", "B", "C")
Shapes = Mapping[str, tuple[int, ...]]
_TEXT, _VISION = "model.language_model.", "model.visual."
_PATCH_EMBED = "model.visual.patch_embed.proj.weight"
_UNNEEDED = ("lm_head.weight", "model.language_model.norm.weight")
_MERGER = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
_FLAT = 256
_MOST_BLOCKS = 64


@dataclass(frozen=True)
class Types:
    """ggml types by kind of tensor; `down` is mlp.down_proj, which people give more bits."""

    linear: str = "Q8_0"
    down: str | None = None
    embedding: str = "Q8_0"
    vision: str = "F16"

    def of(self, name: str, shape: tuple[int, ...]) -> str:
        """The wanted type of a released tensor."""
        if len(shape) == 1:
            return "F32"
        if name.startswith(_VISION):
            return self.vision
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            return self.embedding
        return self.down or self.linear if name.endswith("down_proj.weight") else self.linear


@dataclass(frozen=True)
class Planned:
    """One tensor of a file: its name there, type and shape (torch's order), and the released tensor it is made of."""

    name: str
    kind: str
    shape: tuple[int, ...]
    source: str
    frame: int | None = None  # of a patch embedding that is cut along time
    original: tuple[int, ...] | None = None  # before it was flattened

    def rows(self, values: np.ndarray) -> np.ndarray:
        """The source's float32 values as the rows that are packed."""
        values = values if self.frame is None else values[:, :, self.frame]
        return np.ascontiguousarray(values).reshape(-1, self.shape[-1])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """In bytes where the type is packed."""
        if self.kind in ("F32", "F16"):
            return self.shape
        return gguf.quant_shape_to_byte_shape(self.shape, gguf.GGMLQuantizationType[self.kind])


def plan(config: Mapping, shapes: Shapes, family: str, types: Types) -> tuple[list[Planned], list[Planned]]:
    """(tensors of the model's file, of its vision file) for these released names and shapes."""
    if family == "C":
        renamed = _renamer(config["vision_config"]["deepstack_visual_indexes"])
        tensors = [tensor for name, shape in shapes.items() for tensor in _llama_cpp(name, shape, types, renamed)]
        vision = [tensor for tensor in tensors if tensor.source.startswith(_VISION)]
        return [tensor for tensor in tensors if tensor not in vision], vision
    kept = {name: shape for name, shape in shapes.items() if name not in _UNNEEDED}
    return [_comfyui(name, shape, family, types) for name, shape in kept.items()], []


def _comfyui(name: str, shape: tuple[int, ...], family: str, types: Types) -> Planned:
    stored = name.replace(_VISION, "visual.").replace(_TEXT, "model.")
    kind, count = types.of(name, shape), int(np.prod(shape))
    if family == "B" and name.startswith(_VISION) and len(shape) > 1 and shape[-1] % _FLAT and count % _FLAT == 0:
        return Planned(stored, kind, (count // _FLAT, _FLAT), name, original=shape)
    return Planned(stored, _fitting(kind, shape), shape, name)


def _fitting(kind: str, shape: tuple[int, ...]) -> str:
    values, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return kind if shape[-1] % values == 0 else "F16"


def _llama_cpp(name: str, shape: tuple[int, ...], types: Types, renamed: Callable[[str], str]) -> Iterator[Planned]:
    if name == _PATCH_EMBED:
        for i, suffix in enumerate(("", ".1")):
            yield Planned(renamed(name) + suffix, "F16", (*shape[:2], *shape[3:]), name, frame=i)
        return
    kind = "F32" if name == "model.visual.pos_embed.weight" else types.of(name, shape)
    yield Planned(renamed(name), _fitting(kind, shape), shape, name)


@lru_cache(maxsize=1)
def _name_tables() -> tuple[gguf.TensorNameMap, gguf.TensorNameMap]:
    """The package's, for the decoder and for the vision tower; made in half a second."""
    return (
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3VL, _MOST_BLOCKS),
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, _MOST_BLOCKS),
    )


def _renamer(deepstack: list[int]) -> Callable[[str], str]:
    """Released name -> llama.cpp's."""
    text, vision = _name_tables()

    def renamed(name: str) -> str:
        stem, _, ending = name.rpartition(".")
        part = stem.split(".")
        if "deepstack_merger_list" in part:
            return f"v.deepstack.{deepstack[int(part[3])]}.{part[4].removeprefix('linear_')}.{ending}"
        if part[2:3] == ["merger"]:
            return f"{_MERGER[part[3]]}.{ending}"
        known = text.get_name(stem.replace(_TEXT, "model.")) if not stem.startswith(_VISION) else None
        return f"{known or vision.get_name(stem.removeprefix('model.'))}.{ending}"

    return renamed


def text_values(config: Mapping, family: str, demo: bool = False) -> dict[str, object]:
    """Key-values of the model's file."""
    if family == "A":
        return {}
    values: dict[str, object] = {"general.architecture": "qwen3vl", **({"h3te_demo": True} if demo else {})}
    if family == "B":
        return values
    text, vision = config["text_config"], config["vision_config"]
    sections = text["rope_scaling"]["mrope_section"]
    own = {
        "block_count": text["num_hidden_layers"], "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"], "feed_forward_length": text["intermediate_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": text["num_key_value_heads"], "rope.freq_base": float(text["rope_theta"]),
        "attention.layer_norm_rms_epsilon": float(text["rms_norm_eps"]), "attention.key_length": text["head_dim"],
        "attention.value_length": text["head_dim"], "rope.dimension_sections": [*sections, 0],
        "n_deepstack_layers": len(vision["deepstack_visual_indexes"]),
    }  # fmt: skip
    return values | {f"qwen3vl.{key}": value for key, value in own.items()}


def vision_values(config: Mapping) -> dict[str, object]:
    """Key-values of the vision file."""
    vision = config["vision_config"]
    own = {
        "embedding_length": vision["hidden_size"], "feed_forward_length": vision["intermediate_size"],
        "block_count": vision["depth"], "attention.head_count": vision["num_heads"],
        "projection_dim": vision["out_hidden_size"], "patch_size": vision["patch_size"],
        "spatial_merge_size": vision["spatial_merge_size"],
        "is_deepstack_layers": [i in vision["deepstack_visual_indexes"] for i in range(vision["depth"])],
    }  # fmt: skip
    own = {f"clip.vision.{key}": value for key, value in own.items()}
    return {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger",
    } | own
