"""The stored format of every weight that an encoder needs, told from headers and tiny markers.

Contract: `resolve(catalog, needed)` -> Resolution: a StoredWeight for each needed name that is present, and everything
that keeps the checkpoint from being loaded: weights whose format is unknown, incomplete or not served, tensors that are
missing, unknown or of another shape. Formats are told by tensors and markers, never by the file's name, which people
change. Each weight stands for itself: layers may be packed in different ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..weights import Shape, check_shapes
from .catalog import Catalog
from .markers import Marker, read_markers
from .packed import COMPANIONS, INPUT_SCALE, SCALES, Refused, can_be_packed, open_packed, open_stacked
from .stored_weight import StoredWeight
from .wording import in_words

PLAIN_FORMATS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
FP8_BLOCK = (128, 128)  # where the config does not say
_COMPUTED_WITH = re.compile(r"model\.(language_model\.layers|visual)\.")
_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.")
_GET_WHOLE = (
    "The file is incomplete or another model's: download it again, or use the bf16 file or the official text_encoder "
    "folder."
)


@dataclass(frozen=True)
class Resolution:
    """`formats`: the format of every needed tensor present, for people, refused ones included."""

    weights: Mapping[str, StoredWeight]
    problems: tuple[str, ...]
    formats: Mapping[str, str]


def resolve(catalog: Catalog, needed: Mapping[str, Shape]) -> Resolution:
    """needed: {released name: shape of the matrix}. Raises OSError when a file is gone since its header was read."""
    layers = {name.removesuffix(".weight") for name, shape in needed.items() if can_be_packed(name, shape)}
    markers, problems = read_markers(catalog, layers)
    block = _fp8_block(catalog)
    weights, refused = {}, {}
    for name in (name for name in needed if name in catalog.entries):
        found = _open(catalog, name, needed[name], markers.get(name.removesuffix(".weight")), block)
        if isinstance(found, Refused):
            refused[name] = found
        else:
            weights[name] = found
    lost = _lost_input_scales(weights)
    refused |= lost
    weights = {name: stored for name, stored in weights.items() if name not in lost}
    problems += [*_refusals(catalog, refused), *_misfits(catalog, needed, weights)]
    formats = {name: found.format for name, found in {**weights, **refused}.items()}
    return Resolution(weights, tuple(problems), formats)


def _open(
    catalog: Catalog, name: str, shape: Shape, marker: Marker | None, block: tuple[int, int]
) -> StoredWeight | Refused:
    entry = catalog.entries[name]
    if entry.dtype not in PLAIN_FORMATS:
        return open_packed(catalog.entries, name, shape, marker, block)
    label, layer = PLAIN_FORMATS[entry.dtype], name.removesuffix(".weight")
    if marker is not None:
        return Refused(label, f"{marker.format or 'packed'} weights as their marker says", f"{label} ones")
    scales = [scale for scale in (*SCALES, INPUT_SCALE) if f"{layer}.{scale}" in catalog.entries]
    if scales:
        return Refused(label, f"{label} weights alone", f"{' and '.join(scales)} beside them")
    if name + ".1" in catalog.entries and len(entry.shape) == len(shape) - 1:
        return open_stacked(catalog.entries, name, shape, label)
    return StoredWeight(label, None, {"weight": entry})


def _lost_input_scales(weights: Mapping[str, StoredWeight]) -> dict[str, Refused]:
    """AWQ weights whose scale of the input is gone while others of the same kind and packing have theirs: without it
    they would give wrong numbers, and nothing else tells that it is missing."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, stored in weights.items():
        if stored.packing is not None and _LAYER.match(name):
            alike.setdefault((_kind(name), stored.format), []).append(name)
    partly = [names for names in alike.values() if any(weights[name].input_scale for name in names)]
    return {
        name: Refused(
            f"{weights[name].format} without AWQ's scale",
            f"{INPUT_SCALE} beside each {weights[name].format} {_kind(name)}, as beside others of them",
            "none",
            "Without it the weights mean something else. Download the file again, or use another one.",
        )
        for names in partly
        for name in names
        if weights[name].input_scale is None
    }


def _kind(name: str) -> str:
    """Linears that quantisers scale alike: those that follow no norm, or each kind of the others."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    return "o_proj or down_proj" if kind in ("o_proj", "down_proj") else kind


def _fp8_block(catalog: Catalog) -> tuple[int, int]:
    """The block of HF block fp8, as config.json says."""
    quantisation = (catalog.config or {}).get("quantization_config")
    size = quantisation.get("weight_block_size") if isinstance(quantisation, Mapping) else None
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
        return size[0], size[1]
    return FP8_BLOCK


def _refusals(catalog: Catalog, refused: Mapping[str, Refused]) -> list[str]:
    """One message for all weights that are refused alike."""
    alike: dict[Refused, list[str]] = {}
    for name, why in refused.items():
        alike.setdefault(why, []).append(name)
    return [
        f"{catalog.name}: expected {why.expected}, got {why.got} ({_tensors(len(names))}: {in_words(names)}). "
        f"{why.what_to_do}"
        for why, names in alike.items()
    ]


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"


def _misfits(catalog: Catalog, needed: Mapping[str, Shape], weights: Mapping[str, StoredWeight]) -> list[str]:
    """Missing and unknown tensors, and plain ones of another shape; packed ones were measured by their parts."""
    known = {f"{name.removesuffix('.weight')}.{part}" for name in needed for part in COMPANIONS}
    known |= {f"{name}.1" for name, shape in needed.items() if len(shape) > 2}  # the second slice of a convolution
    found = {
        name: entry.shape if name in weights and weights[name].packing is None else needed.get(name, entry.shape)
        for name, entry in catalog.entries.items()
        if name in needed or (_COMPUTED_WITH.match(name) and name not in known)
    }
    taps = (int(match[1]) for name in needed if (match := _LAYER.match(name)))
    try:
        check_shapes(needed, found, max(taps, default=-1) + 1, catalog.name, _GET_WHOLE)
    except ValueError as error:
        return [str(error)]
    return []
