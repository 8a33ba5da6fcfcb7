"""What is good to know about a checkpoint and keeps nobody from using it; its formats in one line.

Contract: `find_notes` -> whole sentences. A file's name is compared with what its tensors show: people rename files,
and mislabelled uploads exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from ..config import (
    DEEPSTACK_BY_DEPTH,
    RELEASED_EPSILON,
    RELEASED_MROPE_SECTION,
    RELEASED_ROPE_THETA,
    EncoderConfig,
)
from .catalog import Catalog
from .identity import has_vision
from .stored_weight import StoredWeight

_FOLDED = (".q_proj.", ".k_proj.", ".v_proj.", ".gate_proj.", ".up_proj.")
_PLAIN = {"fp16": ("fp16", "f16"), "bf16": ("bf16",), "fp32": ("fp32", "f32")}
# What a name may claim, and how the formats that it means begin.
_CLAIMS = (
    (r"nvfp4|fp4", ("nvfp4",)), (r"mxfp8", ("mxfp8",)), (r"int8|i8|w8a8", ("int8",)),
    (r"int4|w4a4|w4a8|i4", ("int4", "w4a8")), (r"fp8|f8|e4m3fn|e4m3|e5m2", ("fp8",)), (r"bf16", ("bf16",)),
    (r"fp16|f16", ("fp16", "F16")), (r"fp32|f32", ("fp32", "F32")),
)  # fmt: skip
_GGUF_CLAIM = re.compile(r"(?:^|[^a-z0-9])((?:i?q|tq)\d(?:_[0-9a-z]+)*)(?![a-z0-9])")


def format_line(linears: Mapping[str, str], embedding: str | None, weights: Mapping[str, StoredWeight]) -> str | None:
    """ "nvfp4 with AWQ scales, int8 embedding"; several formats with their counts, the most frequent first."""
    counts = Counter(linears.values()).most_common()
    if not counts:
        return None
    words = [label if len(counts) == 1 else f"{label} ({count})" for label, count in counts]
    line = " and ".join(words) + (" with AWQ scales" if any(w.input_scale for w in weights.values()) else "")
    if embedding is None or embedding == counts[0][0]:
        return line
    return f"{line}, {embedding.split(' per ')[0]} embedding"


def awq_folded(weights: Mapping[str, StoredWeight]) -> bool:
    """Some linears bring AWQ's scale of their input; those that follow a norm do not: their norms carry it."""
    scaled = {name for name, stored in weights.items() if stored.input_scale is not None}
    return bool(scaled) and not any(part in name for name in scaled for part in _FOLDED)


def find_notes(
    catalog: Catalog, linears: Mapping[str, str], config: EncoderConfig | None, folded: bool, usable: bool
) -> tuple[str, ...]:
    """config: what would be computed with, None where it could not be read."""
    notes = (
        _mislabelled(catalog, linears),
        _other_numbers(config) if config is not None and catalog.config is not None else None,
        _several(linears) if usable and not catalog.is_gguf else None,  # in GGUF it is usual
        _without_vision(catalog) if usable and not has_vision(catalog) else None,
        "AWQ's scale of q, k, v, gate and up is folded into the norms: never mix this file's norms with another's."
        if folded
        else None,
    )
    return tuple(note for note in notes if note)


def _other_numbers(config: EncoderConfig) -> str | None:
    """What the config alone tells, where it differs from the released encoder's."""
    text, vision = config.text, config.vision
    pairs: list[tuple[str, object, object]] = [
        ("rope_theta", text.rope_theta, RELEASED_ROPE_THETA),
        ("rms_norm_eps", text.rms_norm_eps, RELEASED_EPSILON),
        ("mrope_section", list(text.mrope_section), list(RELEASED_MROPE_SECTION)),
    ]
    if vision is not None:
        taps = DEEPSTACK_BY_DEPTH.get(vision.depth, vision.deepstack_visual_indexes)
        pairs.append(("deepstack_visual_indexes", list(vision.deepstack_visual_indexes), list(taps)))
    differing = [f"{key} {found} (released: {released})" for key, found, released in pairs if found != released]
    if not differing:
        return None
    return (
        f"The config.json beside it, or the config in its header, says {', '.join(differing)}, and it is computed so. "
        "If that config.json is another model's, move it away."
    )


def _mislabelled(catalog: Catalog, linears: Mapping[str, str]) -> str | None:
    name, found = catalog.path.name.lower(), set(linears.values())
    claims = _claims(name)
    wrong = [claim for claim, meant in claims if not any(label.lower().startswith(meant) for label in found)]
    if not found or not wrong or len(wrong) < len(claims):
        return None
    return (
        f"The name says {' and '.join(wrong)}, the tensors are {' and '.join(sorted(found))}: it is judged by its "
        "tensors."
    )


def _claims(name: str) -> list[tuple[str, tuple[str, ...]]]:
    """(word in the name, beginnings of the formats that it can mean)."""
    stem = name.removesuffix(".safetensors").removesuffix(".gguf")
    claims = [
        (match[1], tuple(label.lower() for label in labels))
        for pattern, labels in _CLAIMS
        for match in re.finditer(rf"(?:^|[^a-z0-9])({pattern})(?![a-z0-9])", stem)
    ]
    return [*claims, *((match[1], (match[1][:2],)) for match in _GGUF_CLAIM.finditer(stem))]


def _several(linears: Mapping[str, str]) -> str | None:
    counts = Counter(linears.values()).most_common()
    if len(counts) < 2:
        return None
    listed = ", ".join(f"{count} {label}" for label, count in counts)
    return f"Linears are stored in several formats, each opened as its own tensors say: {listed}."


def _without_vision(catalog: Catalog) -> str:
    hint = catalog.vision_hint or (
        "For pictures and videos use a file that holds visual.* too, such as qwen3vl_32b_minimax_h3_bf16.safetensors."
    )
    return f"No vision tower: this file encodes text alone. {hint}"
