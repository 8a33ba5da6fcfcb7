"""Whether the tensors of a catalog are those that an encoder needs: names, shapes, stored types, from headers alone.

Contract: `check_fit(catalog, needed, tap_layer)` raises ValueError naming everything that is missing, unknown, of
another shape or packed; `needed_shapes(config, tap_layer)` is what an encoder of that config needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from ..config import EncoderConfig
from ..model import Encoder, check_tap
from ..weights import Shape, check_shapes
from .catalog import Catalog

STORED_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_GET_WHOLE = (
    "The file is incomplete or another model's: download it again, or use the bf16 file or the official text_encoder "
    "folder."
)
_FIRST_LAYER = "model.language_model.layers.0."
_COMPUTED_WITH = re.compile(r"model\.(language_model\.layers|visual)\.")


def needed_shapes(config: EncoderConfig, tap_layer: int) -> dict[str, Shape]:
    """{released name: shape} of an encoder of this config. Raises ValueError when it has fewer layers than the tap."""
    check_tap(tap_layer, config.text.num_hidden_layers)
    # layers are alike: one is built, the others are named after it
    shapes = Encoder(config, tap_layer=1).slots.shapes
    first = {name[len(_FIRST_LAYER) :]: shape for name, shape in shapes.items() if name.startswith(_FIRST_LAYER)}
    prefix = _FIRST_LAYER[: -len("0.")]
    return shapes | {f"{prefix}{i}.{name}": shape for i in range(tap_layer) for name, shape in first.items()}


def check_fit(catalog: Catalog, needed: Mapping[str, Shape], tap_layer: int) -> None:
    """Tensors that the catalog has beside the needed ones are refused where they would take part in the computation."""
    entries = {name: entry for name, entry in catalog.entries.items() if name in needed or _COMPUTED_WITH.match(name)}
    check_shapes(needed, {n: entry.shape for n, entry in entries.items()}, tap_layer, catalog.path.name, _GET_WHOLE)
    packed = [f"{name} ({entries[name].dtype})" for name in needed if entries[name].dtype not in STORED_DTYPES]
    if packed:
        raise ValueError(
            f"{catalog.path.name}: expected bf16, fp16 or fp32 weights, got {len(packed)} of other types such as "
            f"{', '.join(packed[:3])}. Use the bf16 file or the official text_encoder folder."
        )
