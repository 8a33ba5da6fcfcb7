"""Which hidden states are taken, and in what they are computed: what H3 wants, and what is refused.

Contract: MiniMax H3 is conditioned on `hidden_states[50]`, 5120 wide, in bfloat16; float32 is the other choice. Each
refusal is a ValueError.
"""

from __future__ import annotations

import torch

SELECTED_LAYER = 50  # MiniMax H3 is conditioned on hidden_states[50]
HIDDEN_SIZE = 5120
COMPUTE_DTYPES = (torch.bfloat16, torch.float32)


def check_dtype(dtype: torch.dtype) -> None:
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(
            f"Encoder: expected compute dtype torch.bfloat16 or torch.float32, got {dtype}. "
            "float16 overflows in this model: use bfloat16, or float32 where bfloat16 is missing."
        )


def check_whole(tap_layer: object) -> None:
    """Raise ValueError unless it is an int: what comes from a widget or a config may be text."""
    if type(tap_layer) is not int:
        raise ValueError(f"Encoder: expected tap_layer as a whole number, got {tap_layer!r}. Use 50 for MiniMax H3.")


def check_tap(tap_layer: int, layers: int) -> None:
    """Raise ValueError unless a decoder of that many layers has `hidden_states[tap_layer]`."""
    check_whole(tap_layer)
    if not 1 <= tap_layer <= layers:
        raise ValueError(
            f"Encoder: expected a checkpoint of at least {tap_layer} decoder layers, got {layers}. "
            "MiniMax H3 needs the Qwen3-VL-32B encoder (50 or 64 layers); a smaller Qwen3-VL cannot stand in."
            if tap_layer >= 1
            else f"Encoder: expected tap_layer from 1 to {layers}, got {tap_layer}. Use 50 for MiniMax H3."
        )
