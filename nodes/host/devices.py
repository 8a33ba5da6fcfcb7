"""Where the encoder computes, and in which dtype.

Contract: `auto` follows ComfyUI's own choice for text encoders; else `cpu` or any accelerator that torch reports.
bfloat16 where the device can multiply it, else float32; never float16, which overflows in this model.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import comfy.model_management
import torch

logger = logging.getLogger(__name__)

AUTO = "auto"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def device_options() -> list[str]:
    """`auto`, `cpu`, then `cuda:0`..., `xpu:0`..., `mps` as torch reports them."""
    found = [f"{kind}:{i}" for kind in ("cuda", "xpu") for i in range(_count(kind))]
    mps = getattr(torch.backends, "mps", None)
    return [AUTO, "cpu", *found, *(["mps"] if mps is not None and mps.is_available() else [])]


def _count(kind: str) -> int:
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def pick_devices(choice: str) -> tuple[torch.device, torch.device]:
    """(load device, offload device). Raises ValueError for a device that this machine lacks."""
    if choice not in device_options():
        raise ValueError(
            f"Load MiniMax H3 Text Encoder (H3TE): expected device to be one of {', '.join(device_options())}, "
            f"got {choice!r}. Choose auto."
        )
    if choice == AUTO:
        return comfy.model_management.text_encoder_device(), comfy.model_management.text_encoder_offload_device()
    device = torch.device(choice)
    offload = device if device.type == "cpu" else comfy.model_management.text_encoder_offload_device()
    return device, offload


def pick_dtype(choice: str, device: torch.device) -> torch.dtype:
    """The compute dtype on `device`; `auto` tries a product in bfloat16 there."""
    if choice != AUTO:
        return DTYPES[choice]
    if _multiplies_bfloat16(device):
        return torch.bfloat16
    logger.warning("MiniMax H3 text encoder: %s cannot multiply bfloat16, computing in float32.", device)
    return torch.float32


@lru_cache(maxsize=16)
def _multiplies_bfloat16(device: torch.device) -> bool:
    x = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    try:
        return bool((x @ x).float().sum() == 512)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
