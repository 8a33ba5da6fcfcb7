"""ComfyUI IMAGE tensors <-> prepared uint8 RGB pixels, with one rule for alpha and for grey pictures.

Contract: an IMAGE is float 0..1 (bytes are taken too) [B, H, W, C], C 1, 3 or 4. Alpha is composited on a colour, grey
is repeated over the three channels; each is said in the log. Every picture of a batch is used, or the socket that
cannot is named in an error.
"""

from __future__ import annotations

import logging

import torch

from ...encoder.pixels import to_uint8
from ..colours import RGB

logger = logging.getLogger(__name__)

WHITE: RGB = (255, 255, 255)
_CHANNELS = {1: "grey", 3: "RGB", 4: "RGBA"}


def to_rgb(image: torch.Tensor, where: str, background: RGB = WHITE) -> torch.Tensor:
    """IMAGE [B, H, W, C] -> uint8 [B, H, W, 3] on the CPU. Raises ValueError naming `where`."""
    if not isinstance(image, torch.Tensor) or image.dim() != 4 or image.shape[-1] not in _CHANNELS:
        got = f"shape {list(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise ValueError(f"{where}: expected an IMAGE [B, H, W, 3 or 4], got {got}. Connect an image output.")
    image = image.detach().cpu()
    if image.is_floating_point():
        image = image.float()
    elif image.dtype == torch.uint8 and image.shape[-1] == 4:  # alpha is a share, not a byte
        image = to_image(image)
    return to_uint8(_three_channels(image, where, background), 4, where)


def _three_channels(image: torch.Tensor, where: str, background: RGB) -> torch.Tensor:
    channels = image.shape[-1]
    if channels == 1:
        logger.info("%s: a grey picture, repeated over red, green and blue.", where)
        return image.expand(*image.shape[:-1], 3)
    if channels == 4:
        logger.info("%s: a picture with alpha, composited on %s.", where, background)
        alpha = image[..., 3:]
        return image[..., :3] * alpha + torch.tensor(background) / 255 * (1 - alpha)
    return image


def each(image: torch.Tensor, where: str, background: RGB = WHITE) -> list[torch.Tensor]:
    """IMAGE -> one uint8 [H, W, 3] per picture of the batch."""
    return list(to_rgb(image, where, background))


def single(image: torch.Tensor, where: str, background: RGB = WHITE) -> torch.Tensor:
    """IMAGE of exactly one picture -> uint8 [H, W, 3]. A larger batch is an error, never cut silently."""
    pictures = to_rgb(image, where, background)
    if len(pictures) != 1:
        raise ValueError(
            f"{where}: expected one picture, got a batch of {len(pictures)}. Pick one with Get Image from Batch "
            "(ImageFromBatch)."
        )
    return pictures[0]


def to_image(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [..., H, W, 3] -> float 0..1 of the same shape; `round(255 x)` gives the same bytes back."""
    return pixels.float().div_(255)
