"""Packed formats that are recognised and never opened, told by names of tensors and by config.json.

Contract: `refused_format(catalog)`: a message that names what came and what is served instead, or None. Formats that a
marker names (mxfp8, convrot_w4a4, asym_w4a8_int8) are refused where markers are read, in packed.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from .catalog import Catalog
from .markers import LEGACY, MARKER, METADATA
from .packed import SERVED, USE_ANOTHER
from .wording import printable

_METHODS = {"awq": "AWQ", "gptq": "GPTQ", "bitsandbytes": "bitsandbytes"}
# Behind a layer's name, any of these; the first that fits. GPTQ has AWQ's names and one more.
_MARKS = (
    ((".g_idx",), "GPTQ"),
    ((".qweight", ".qzeros"), "AWQ or GPTQ"),
    ((".SCB", ".weight.absmax", ".weight.quant_map"), "bitsandbytes"),
    ((".weight_packed",), "compressed-tensors"),
)


def refused_format(catalog: Catalog) -> str | None:
    """AWQ, GPTQ, bitsandbytes, compressed-tensors and others that config.json names, LightX2V's fp8."""
    marked = _marked(catalog)
    label = _configured(catalog, marked is not None) or marked or _lightx2v(catalog)
    if label is None:
        return None
    return f"{catalog.name}: expected {SERVED} weights, got {label}. {USE_ANOTHER}"


def _configured(catalog: Catalog, marked: bool) -> str | None:
    """What config.json says, where the tensors agree that something is packed. A config.json beside a single file may
    be that of the same model in another format: it needs the marks too."""
    said = (catalog.config or {}).get("quantization_config")
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    if not isinstance(method, str) or method == "fp8" or not (marked or _own_and_packed(catalog)):
        return None
    return f"{_METHODS.get(method, printable(method[:40]))} weights (config.json says so)"


def _own_and_packed(catalog: Catalog) -> bool:
    return bool(catalog.index_names) and any(
        e.dtype[:2] in ("U8", "I8", "F8", "I3") for n, e in catalog.entries.items() if n.endswith("_proj.weight")
    )


def _marked(catalog: Catalog) -> str | None:
    for marks, label in _MARKS:
        found = next((name for name in catalog.entries if name.endswith(marks)), None)
        if found is not None:
            return f"{label} weights (a tensor named *{found[found.rindex('.') :]})"
    if any(".quant_state." in name for name in catalog.entries):
        return "bitsandbytes weights (a tensor named *.quant_state)"
    return None


def _lightx2v(catalog: Catalog) -> str | None:
    """Official names, fp8 with a scale a row, no vision tower, and nothing that announces it."""
    entries = catalog.entries
    if catalog.layout != "official" or METADATA in catalog.metadata:
        return None
    if any(name.startswith("model.visual.") or name.endswith((MARKER, LEGACY)) for name in entries):
        return None
    for name, entry in entries.items():
        if entry.dtype == "F8_E4M3" and name.endswith(".weight") and entry.shape:
            scale = entries.get(name + "_scale")
            if scale is not None and scale.shape == (entry.shape[0], 1):
                return "LightX2V's fp8 (a scale a row, no marker, no vision tower)"
    return None
