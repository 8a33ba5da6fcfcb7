"""Keyframes: pictures put on the canvas, pinned to frames of the target, shown to the text encoder or not.

Contract: `minimax_keyframes` of ComfyUI's H3 sampler, blocks of {"resolved_frame_index", "latent"}; latents exist only
where a VAE is connected. Errors name the socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...encoder import geometry
from ...encoder.pixels import FPS
from ..chains import KeyframeItem
from ..colours import RGB
from .images import WHITE, single, to_image
from .references import Target, resolve_target

CANVASES = ("given", "first image")


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A fitted picture, uint8 [H, W, 3], at a frame of the target; `show`: the text encoder sees it."""

    frame: int
    pixels: torch.Tensor
    show: bool


def canvas_target(canvas: str, items: Sequence[KeyframeItem], width: int, height: int, length: int) -> Target:
    """The target of one of CANVASES. Raises ValueError for "first image" without a keyframe."""
    if canvas == CANVASES[1]:
        if not items:
            raise ValueError(
                f"canvas: expected a keyframe for {canvas!r}, got none. Connect one, or choose {CANVASES[0]!r}."
            )
        rows, columns = single(items[0].pixels, items[0].where).shape[:2]
        width, height = geometry.canvas_size(columns, rows)
    return resolve_target(width, height, length)


def fit_keyframes(items: Sequence[KeyframeItem], target: Target, background: RGB = WHITE) -> list[Keyframe]:
    """Each picture on the canvas at its frame, in the order given. Raises ValueError naming the socket."""
    return [_fit(item, position, target, background) for position, item in enumerate(items)]


def _fit(item: KeyframeItem, position: int, target: Target, background: RGB) -> Keyframe:
    fit = geometry.released_fit(position) if item.fit == "released" else item.fit
    pixels = single(item.pixels, item.where, background)
    fitted = geometry.fit_keyframe(pixels, target.width, target.height, fit, where=item.where, colour=item.pad_colour)
    return Keyframe(resolved_frame(item, target), fitted, item.show)


def resolved_frame(item: KeyframeItem, target: Target) -> int:
    """The frame that `second` or `frame` means. Raises ValueError naming the socket when it is outside the video."""
    given = item.frame if item.second is None else round(item.second * FPS)
    frame = given if given >= 0 else target.frames + given
    if not 0 <= frame < target.frames:
        raise ValueError(
            f"{item.where}: expected a frame from {-target.frames} to {target.frames - 1} of the video's "
            f"{target.frames} frames, got {given}. Choose one inside, or raise length."
        )
    return frame


def shown_images(keyframes: Iterable[Keyframe]) -> list[torch.Tensor]:
    """What `CLIP.tokenize(images=)` of every H3 CLIP reads: IMAGE [1, H, W, 3] each."""
    return [to_image(keyframe.pixels)[None] for keyframe in keyframes if keyframe.show]


def keyframe_blocks(keyframes: Iterable[Keyframe], vae: Any) -> list[dict[str, Any]]:
    """`minimax_keyframes`; none without a VAE."""
    if vae is None:
        return []
    return [{"resolved_frame_index": k.frame, "latent": vae.encode(to_image(k.pixels)[None])} for k in keyframes]
