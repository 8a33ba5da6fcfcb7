"""What an encoder of a config needs, told without building it whole.

Contract: `needed_shapes(config, tap_layer)` -> {released name: shape of the matrix}.
"""

from __future__ import annotations

from functools import lru_cache

from ..config import EncoderConfig
from ..model import Encoder
from ..tap import check_tap
from ..weights import Shape

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
