"""The stored format of a checkpoint's decoder linears, named from its headers.

Contract: `find_format(catalog)`: "bf16", "fp16" or "fp32" for plain weights; a packed format is named by the types and
scales that stand beside each weight, never by the file's name, which people change.
"""

from __future__ import annotations

from .catalog import Catalog
from .header import TensorEntry

PLAIN_FORMATS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_PROBE = ".mlp.down_proj.weight"
# Stored type of the weight, a tensor that stands beside it ("" for any), the name; the first that fits.
_PACKED = (
    ("U8", "pre_quant_scale", "nvfp4 with AWQ scales"),
    ("U8", "weight_scale_2", "nvfp4"),
    ("F8_E4M3", "weight_scale_inv", "fp8 with block scales"),
    ("F8_E4M3", "", "fp8"),
    ("F8_E5M2", "", "fp8 (e5m2)"),
    ("I8", "weight_s_rel", "int4 weights for int8 activations (w4a8)"),
    ("I8", "", "int8 or int4"),
)


def find_format(catalog: Catalog) -> str | None:
    """The format of the decoder's linears, several joined by "and"; None without any."""
    found = {_format_of(catalog, name, e) for name, e in catalog.entries.items() if name.endswith(_PROBE)}
    if "_quantization_metadata" in catalog.metadata or any(n.endswith(".comfy_quant") for n in catalog.entries):
        found = {name for name in found if name not in PLAIN_FORMATS.values()} or {"packed (comfy_quant)"}
    return " and ".join(sorted(found)) or None


def _format_of(catalog: Catalog, name: str, entry: TensorEntry) -> str:
    if entry.dtype in PLAIN_FORMATS:
        return PLAIN_FORMATS[entry.dtype]
    layer = name[: -len("weight")]
    scale = catalog.entries.get(layer + "weight_scale")
    if entry.dtype == "F8_E4M3" and scale is not None and scale.dtype in ("U8", "F8_E8M0"):
        return "mxfp8"
    for dtype, beside, packed in _PACKED:
        if entry.dtype == dtype and (not beside or layer + beside in catalog.entries):
            return packed
    return f"packed ({entry.dtype})"


def format_problem(catalog: Catalog) -> str | None:
    """The problem of a packed or mixed format; None for bf16, fp16 or fp32 throughout."""
    name = find_format(catalog)
    if name in PLAIN_FORMATS.values():
        return None
    return (
        f"{catalog.path.name}: expected bf16, fp16 or fp32 weights, got {name or 'no decoder layers'}. "
        "This release does not open packed files yet: use the bf16 file or the official text_encoder folder."
    )
