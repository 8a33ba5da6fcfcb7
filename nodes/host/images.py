"""ComfyUI IMAGE tensors <-> prepared uint8 RGB pixels, with one rule for alpha and for grey pictures.

Contract: an IMAGE is float 0..1 (bytes are taken too) [B, H, W, C], C 1, 3 or 4, of any float dtype, device, strides.
Alpha (straight, not premultiplied; clamped to 0..1) is composited on a colour, grey is repeated over the three
channels, values outside 0..1 are clamped, NaN and infinity are errors. Every picture of a batch is used, or the socket
that cannot is named in an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ...encoder.pixels import to_uint8
from ..colours import RGB
from .stop import heed_stop

logger = logging.getLogger(__name__)

WHITE: RGB = (255, 255, 255)
_GREY, _RGB, _RGBA = 1, 3, 4


def to_rgb(
    image: torch.Tensor, where: str, background: RGB = WHITE, picks: Sequence[int] | None = None
) -> torch.Tensor:
    """IMAGE [B, H, W, C] -> uint8 [B, H, W, 3] on the CPU, or those pictures that `picks` names, in ascending order.
    Stop is heeded before each. Raises ValueError naming `where`."""
    image = checked(image, where)
    picks = range(len(image)) if picks is None else picks
    if image.dtype == torch.uint8 and image.shape[-1] == _RGB and list(picks) == list(range(len(picks))):
        return to_uint8(image[: len(picks)], 4, where)  # as it is, without a copy
    made = torch.empty(len(picks), *image.shape[1:3], 3, dtype=torch.uint8)
    for place, pick in enumerate(picks):  # one by one: a clip in float is gigabytes
        heed_stop()
        again = place > 0 and pick == picks[place - 1]
        made[place] = made[place - 1] if again else _rgb(image[pick], where, background)
    return made


def _rgb(picture: torch.Tensor, where: str, background: RGB) -> torch.Tensor:
    """[H, W, C] -> uint8 [H, W, 3]."""
    picture = picture.detach().cpu()
    if picture.shape[-1] == _RGBA:
        picture = _on(picture, background)
    return to_uint8(picture.expand(*picture.shape[:-1], 3), 3, where)


def to_rgb_logged(image: torch.Tensor, where: str) -> torch.Tensor:
    """to_rgb for nodes of others, which have no place of ours to say it on: alpha is put on white, and logged."""
    if _transparent(image):
        logger.info("%s: alpha composited on white", where)
    return to_rgb(image, where)


def checked(image: Any, where: str) -> torch.Tensor:
    """The same IMAGE. Raises ValueError naming `where` for what is none."""
    if not isinstance(image, torch.Tensor):
        got, fix = type(image).__name__, "Connect an image output."
    elif image.dim() == 3:
        got, fix = f"shape {list(image.shape)}", "For a mask, put Convert Mask to Image (MaskToImage) before it."
    elif image.dim() != 4 or image.shape[-1] not in (_GREY, _RGB, _RGBA):
        got, fix = f"shape {list(image.shape)}", "Connect an image output."
    elif 0 in image.shape:
        got, fix = f"shape {list(image.shape)}, which has no pixels", "Check the node that made it."
    else:
        return image
    raise ValueError(f"{where}: expected an IMAGE [B, H, W, 3 or 4], got {got}. {fix}")


def _on(frame: torch.Tensor, background: RGB) -> torch.Tensor:
    """RGBA [.., H, W, 4] -> float RGB [H, W, 3] on the colour."""
    frame = to_image(frame) if frame.dtype == torch.uint8 else frame.float()
    alpha = frame[..., 3:].clamp(0, 1)
    return frame[..., :3] * alpha + torch.tensor(background) / 255 * (1 - alpha)


def about_alpha(items: Iterable[Any], colour: str) -> list[str]:
    """One line that names every item (with `where` and `pixels` or `frames`) that is transparent anywhere, and the
    colour as the user gave it; none when nothing is."""
    named = [item.where for item in items if _transparent(getattr(item, "pixels", getattr(item, "frames", None)))]
    return [f"alpha of {', '.join(dict.fromkeys(named))} composited on {colour.strip()}"] if named else []


def _transparent(image: Any) -> bool:
    if not isinstance(image, torch.Tensor) or image.shape[-1:] != (_RGBA,):
        return False
    opaque = 255 if image.dtype == torch.uint8 else 1
    return bool((image[..., 3] < opaque).any())


def log_once(node: str, lines: Iterable[str]) -> None:
    """Each line once, however many prompts of a list it was said for."""
    for line in dict.fromkeys(lines):
        logger.info("%s: %s", node, line)


def each(image: torch.Tensor, where: str, background: RGB = WHITE) -> list[torch.Tensor]:
    """IMAGE -> one uint8 [H, W, 3] per picture of the batch."""
    return list(to_rgb(image, where, background))


def single(image: torch.Tensor, where: str, background: RGB = WHITE) -> torch.Tensor:
    """IMAGE of exactly one picture -> uint8 [H, W, 3]. A larger batch is an error, never cut silently."""
    return to_rgb(_only(image, where), where, background)[0]


def size_of(image: torch.Tensor, where: str) -> tuple[int, int]:
    """Width and height of an IMAGE of exactly one picture, which is not converted."""
    _, height, width, _ = _only(image, where).shape
    return width, height


def _only(image: torch.Tensor, where: str) -> torch.Tensor:
    if len(checked(image, where)) != 1:
        raise ValueError(
            f"{where}: expected one picture, got a batch of {len(image)}. Pick one with Get Image from Batch "
            "(ImageFromBatch)."
        )
    return image


def to_image(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [..., H, W, C] -> float 0..1 of the same shape; `round(255 x)` gives the same bytes back."""
    return pixels.float().div_(255)
