"""Which model a checkpoint is of, told by the names and shapes of its tensors: MiniMax H3's encoder or another.

Contract: each `*_problem(catalog, ...)` is one message with what to do, or None. `foreign_problem` and `depth_problem`
are what `load_encoder` refuses too; width and vision decide only whether this is H3's own encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tap import HIDDEN_SIZE
from ..weights import EMBED_TOKENS
from .catalog import Catalog
from .refusals import refused_format
from .wording import spans

VISION_TENSORS = 351
MERGERS = "model.visual.deepstack_merger_list."
_VISUAL = "model.visual."
_FIRST_NORM = "model.language_model.layers.0.input_layernorm.weight"
_SIBLINGS = {2048: "Qwen3-VL-2B", 2560: "Qwen3-VL-4B", 4096: "Qwen3-VL-8B"}
_USE = "Use a qwen3vl_32b_minimax_h3 file or the released text_encoder folder."
FOREIGN_MARKS = (
    (".linear_attn.", "Qwen3.5"),
    (".mlp.experts.", "a mixture-of-experts model"),
    ("q_proj.bias", "Qwen2 or Qwen2.5"),
)


def foreign_problem(catalog: Catalog) -> str | None:
    """Another model, or a packed format that is never opened, told by tensors that only it has."""
    for mark, model in FOREIGN_MARKS:
        if any(mark in name for name in catalog.entries):
            return f"{catalog.name}: expected Qwen3-VL-32B, got {model} (a tensor named *{mark}*). {_USE}"
    return refused_format(catalog)


def layer_numbers(catalog: Catalog) -> set[int]:
    """Decoder layers that the checkpoint holds, those that its index names in unopened shards included."""
    prefix = "model.language_model.layers."
    names = catalog.index_names or catalog.entries.keys()
    found = {name[len(prefix) :].split(".", 1)[0] for name in names if name.startswith(prefix)}
    return {int(layer) for layer in found if layer.isdecimal()}


def depth_problem(catalog: Catalog, tap_layer: int) -> str | None:
    """Fewer decoder layers than the tap needs, or a hole in their numbering."""
    layers = layer_numbers(catalog)
    count = max(layers, default=-1) + 1
    holes = [number for number in range(min(count, tap_layer)) if number not in layers]
    if holes:
        return (
            f"{catalog.name}: expected decoder layers 0 to {max(count, tap_layer) - 1}, got none with number "
            f"{spans(holes)}. A shard or a part of the file is missing: download it again."
        )
    if count >= tap_layer:
        return None
    return f"{catalog.name}: expected at least {tap_layer} decoder layers, got {count}{_sibling(catalog)}. {_USE}"


def width(catalog: Catalog) -> int:
    """Hidden width, from the first norm, which is never packed, or the token table; 0 without either."""
    entry = catalog.entries.get(_FIRST_NORM) or catalog.entries.get(EMBED_TOKENS)
    return entry.shape[-1] if entry is not None and entry.shape else 0


def width_problem(catalog: Catalog) -> str | None:
    found = width(catalog)
    if found == HIDDEN_SIZE or catalog.is_demo:
        return None
    return f"{catalog.name}: expected hidden width {HIDDEN_SIZE}, got {found}{_sibling(catalog)}. {_USE}"


def _sibling(catalog: Catalog) -> str:
    found = width(catalog)
    return f" (this is {_SIBLINGS[found]})" if found in _SIBLINGS else ""


def has_vision(catalog: Catalog) -> bool:
    return any(name.startswith(_VISUAL) for name in catalog.entries)


def vision_problem(catalog: Catalog) -> str | None:
    """No vision and nothing that says Qwen3-VL, or a part of a vision tower."""
    names = {name for name in catalog.entries if name.startswith(_VISUAL) and name.endswith((".weight", ".bias"))}
    if not has_vision(catalog):
        return None if says_qwen3vl(catalog) else _text_only(catalog)
    if not any(name.startswith(MERGERS) for name in names):
        return (
            f"{catalog.name}: expected a vision tower with DeepStack mergers (visual.deepstack_merger_list), got "
            f"one without: it is incomplete, or of another model than Qwen3-VL. {_USE}"
        )
    if len(names) < VISION_TENSORS:
        return (
            f"{catalog.name}: expected {VISION_TENSORS} vision tensors, got {len(names)}: the vision tower is "
            "incomplete. Download the file again."
        )
    return None


def _text_only(catalog: Catalog) -> str:
    return (
        f"{catalog.name}: expected a vision tower (visual.*) or a qwen3vl name, got neither: this looks like the "
        f"text-only Qwen3-32B. {_USE}"
    )


def says_qwen3vl(catalog: Catalog) -> bool:
    """By config, GGUF architecture or file name: such a file without vision serves text."""
    config: Mapping[str, Any] = catalog.config or {}
    name = str(catalog.path.name).lower().replace("-", "").replace("_", "")
    said = f"{config.get('model_type', '')} {catalog.metadata.get('general.architecture', '')}"
    return "qwen3_vl" in said or "qwen3vl" in said or "qwen3vl" in name
