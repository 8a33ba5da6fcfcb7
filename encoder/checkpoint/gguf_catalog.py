"""The tensors of GGUF files by released name: ComfyUI's names with vision inside, or llama.cpp's with a vision file.

Contract: `open_gguf(path, vision=None) -> Catalog`. Shapes are the released ones, also of tensors that were flattened
before packing (`comfy.gguf.orig_shape.<tensor>`) and of a patch embedding that was written with fewer axes than five.
That of a vision file comes in two slices, the second as `<name>.1`, as it is stored. Key-values that contradict what
the encoder computes with are ValueErrors, as is another model's architecture; files without any key-values are taken by
their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from ..config import EncoderConfig
from ..weights import EMBED_TOKENS
from .catalog import DEMO_KEY, Catalog, whole_shapes
from .gguf_file import GgufHeader, Value, read_gguf
from .gguf_names import deepstack_indexes, is_llama_cpp, is_vision_file, text_names, vision_names
from .gguf_vision import find_vision, name_of
from .header import TensorEntry
from .names import find_layout, released_name

ARCHITECTURE = "general.architecture"
QWEN3VL = "qwen3vl"
LAYOUTS = {
    "comfyui": "gguf (ComfyUI names)", "official": "gguf (official names)", "bare": "gguf (names without prefix)",
    "llama.cpp": "gguf (llama.cpp names)",
}  # fmt: skip
_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
_PATCH = (3, 2, 16, 16)  # channels, frames, height, width of one patch
_USE = "Use a GGUF file of MiniMax H3's encoder (Qwen3-VL-32B)."
_FOREIGN = {
    "qwen3": "the text-only Qwen3", "qwen2vl": "Qwen2-VL or Qwen2.5-VL", "qwen2": "Qwen2", "qwen3vlmoe":
    "a mixture-of-experts Qwen3-VL", "qwen3moe": "a mixture-of-experts Qwen3", "llama": "Llama", "t5": "T5",
    "t5encoder": "T5", "gemma3": "Gemma 3", "qwen35": "Qwen3.5",
}  # fmt: skip


def open_gguf(path: Path, vision: Path | None = None) -> Catalog:
    """Raises ValueError, OSError (a file is absent) or RuntimeError (no `gguf` package)."""
    header = read_gguf(path)
    layout, entries = _text_entries(path, header)
    files, hint = (path,), ""
    if any(name.startswith("model.visual.") for name in entries):
        _refuse_second(path, vision)
    else:
        width = entries[EMBED_TOKENS].shape[-1] if EMBED_TOKENS in entries else 0
        second, hint = find_vision(path, width, vision)
        if second is not None:
            entries |= _vision_entries(second)
            files = (path, next(iter(second.tensors.values())).file)
            _check_vision(second, entries)
    if layout == "llama.cpp":  # other names are written with key-values of any kind, or none
        _check_values(path.name, header.values, QWEN3VL, _TEXT_KEYS, _dimensions(entries))
    return Catalog(path, LAYOUTS[layout], entries, None, _metadata(header.values), files, vision_hint=hint)


def _text_entries(path: Path, header: GgufHeader) -> tuple[str, dict[str, TensorEntry]]:
    """(layout, released name -> entry) of the model's own file."""
    if is_vision_file(header.tensors):
        raise ValueError(
            f"{path.name}: expected the text encoder, got its vision file (mmproj). Choose the model's file: this one "
            "is found beside it."
        )
    if is_llama_cpp(header.tensors):
        _check_architecture(path, header.values)
        names = text_names(header.tensors)
        return "llama.cpp", {names[name]: entry for name, entry in header.tensors.items()}
    layout = find_layout(header.tensors)
    renamed = {released_name(name, layout): _reshaped(e, header.values) for name, e in header.tensors.items()}
    return layout, renamed


def _check_architecture(path: Path, values: Mapping[str, Value]) -> None:
    found = values.get(ARCHITECTURE, QWEN3VL)
    if found != QWEN3VL:
        known = f" ({_FOREIGN[found]})" if isinstance(found, str) and found in _FOREIGN else ""
        raise ValueError(f"{path.name}: expected the architecture {QWEN3VL}, got {found!r}{known}. {_USE}")


def _reshaped(entry: TensorEntry, values: Mapping[str, Value]) -> TensorEntry:
    """The entry in the shape that it had before it was packed."""
    original = values.get(_ORIGINAL_SHAPE + entry.stored_name)
    count = prod(entry.shape)
    if original is not None:
        if not _is_shape(original) or prod(original) != count:
            raise ValueError(
                f"{entry.file.name}: expected {_ORIGINAL_SHAPE}{entry.stored_name} to be a shape of {count:,} values, "
                f"got {original}. The file is damaged: replace it."
            )
        return replace(entry, shape=tuple(original))
    if entry.stored_name.endswith("visual.patch_embed.proj.weight") and count % prod(_PATCH) == 0:
        return replace(entry, shape=(count // prod(_PATCH), *_PATCH))
    return entry


def _is_shape(value: Value) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _vision_entries(header: GgufHeader) -> dict[str, TensorEntry]:
    names = vision_names(header.tensors)
    return {names[name]: entry for name, entry in header.tensors.items()}


def _refuse_second(path: Path, vision: Path | None) -> None:
    if vision is not None:
        raise ValueError(
            f"{path.name}: expected no second vision file, got {Path(vision).name}, but vision is inside this one. "
            "Leave the option empty."
        )


# What the encoder computes with, by the key-value that says so; keys that a file lacks are not checked.
_TEXT_KEYS: dict[str, Callable[[EncoderConfig], object]] = {
    "embedding_length": lambda config: config.text.hidden_size,
    "feed_forward_length": lambda config: config.text.intermediate_size,
    "block_count": lambda config: config.text.num_hidden_layers,
    "attention.head_count": lambda config: config.text.num_attention_heads,
    "attention.head_count_kv": lambda config: config.text.num_key_value_heads,
    "attention.key_length": lambda config: config.text.head_dim,
    "attention.layer_norm_rms_epsilon": lambda config: config.text.rms_norm_eps,
    "rope.freq_base": lambda config: config.text.rope_theta,
    "rope.dimension_sections": lambda config: [*config.text.mrope_section, 0],
}
_VISION_KEYS: dict[str, Callable[[EncoderConfig], object]] = {
    "embedding_length": lambda config: config.vision.hidden_size,
    "feed_forward_length": lambda config: config.vision.intermediate_size,
    "block_count": lambda config: config.vision.depth,
    "attention.head_count": lambda config: config.vision.num_heads,
    "projection_dim": lambda config: config.vision.out_hidden_size,
    "patch_size": lambda config: config.vision.patch_size,
    "spatial_merge_size": lambda config: config.vision.spatial_merge_size,
}


def _check_vision(header: GgufHeader, entries: Mapping[str, TensorEntry]) -> None:
    config = _dimensions(entries)
    _check_values(name_of(header), header.values, "clip.vision", _VISION_KEYS, config)
    found = deepstack_indexes(header.tensors)
    if found != config.vision.deepstack_visual_indexes:
        raise ValueError(
            f"{name_of(header)}: expected DeepStack mergers after the vision blocks "
            f"{list(config.vision.deepstack_visual_indexes)}, got {list(found)}. Use the mmproj file of this model."
        )


def _dimensions(entries: Mapping[str, TensorEntry]) -> EncoderConfig:
    return EncoderConfig.from_shapes(whole_shapes(entries))


def _check_values(
    file: str, values: Mapping[str, Value], prefix: str, keys: Mapping[str, Callable], config: EncoderConfig
) -> None:
    for key, computed in keys.items():
        found, wanted = values.get(f"{prefix}.{key}"), computed(config)
        if found is not None and not _agrees(found, wanted):
            raise ValueError(f"{file}: expected {prefix}.{key} to be {wanted}, got {found}. {_USE}")


def _agrees(found: Value, wanted: object) -> bool:
    if isinstance(wanted, list):
        return isinstance(found, list) and found[:3] == wanted[:3]
    return isinstance(found, (int, float)) and abs(found - wanted) <= 1e-6 * abs(wanted)


def _metadata(values: Mapping[str, Value]) -> dict[str, str]:
    return dict(_texts(values))


def _texts(values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if not isinstance(value, list) and not (key == DEMO_KEY and not value):
            yield key, str(value)
