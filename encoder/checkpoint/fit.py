"""What an encoder of a config needs, and whether a catalog holds it.

Contract: `needed_shapes(config, tap_layer)` -> {released name: shape}; `check_fit(catalog, needed, tap_layer)` raises
ValueError with the first of `resolve`'s problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..config import EncoderConfig
from ..model import Encoder, check_tap
from ..weights import Shape
from .catalog import Catalog
from .formats import resolve

_FIRST_LAYER = "model.language_model.layers.0."


def needed_shapes(config: EncoderConfig, tap_layer: int) -> dict[str, Shape]:
    """{released name: shape} of an encoder of this config. Raises ValueError when it has fewer layers than the tap."""
    check_tap(tap_layer, config.text.num_hidden_layers)
    return dict(_shapes(config, tap_layer))


@lru_cache(maxsize=8)
def _shapes(config: EncoderConfig, tap_layer: int) -> dict[str, Shape]:
    # layers are alike: one is built, the others are named after it
    shapes = Encoder(config, tap_layer=1).slots.shapes
    first = {name[len(_FIRST_LAYER) :]: shape for name, shape in shapes.items() if name.startswith(_FIRST_LAYER)}
    prefix = _FIRST_LAYER[: -len("0.")]
    return shapes | {f"{prefix}{i}.{name}": shape for i in range(tap_layer) for name, shape in first.items()}


def check_fit(catalog: Catalog, needed: Mapping[str, Shape], tap_layer: int) -> None:
    """Tensors that the catalog has beside the needed ones are refused where they would take part in the computation."""
    problems = resolve(catalog, needed).problems
    if problems:
        raise ValueError(problems[0])
