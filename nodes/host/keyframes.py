"""Keyframes: pictures put on the canvas, pinned to frames of the target, shown to the text encoder or not.

Contract: `minimax_keyframes` of ComfyUI's H3 sampler, blocks of {"resolved_frame_index", "latent"} in the order given;
latents exist only where a VAE is connected. The geometry anchor is the first keyframe given, whether the encoder sees
it or not: geometry is about the pixels that pin, and `show` changes only what is read. Errors name the socket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...encoder import geometry
from ...encoder.pixels import FPS, MAX_ASPECT
from ..chains import KeyframeItem
from ..colours import RGB
from .images import WHITE, single, size_of, to_image
from .known_pictures import Source
from .latents import encode_pixels
from .outline import blank, reduced, thinned
from .preparing import told
from .references import MAX_SIDE, Target, resolve_target

CANVASES = ("given", "first image")


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A fitted picture, uint8 [H, W, 3], at a frame of the target; `show`: the text encoder sees it. given: width and
    height that arrived; small: of an outline, whose pixels are blank: the fitted picture in little, uint8 [1, h, w, 3];
    source: what its vision block is made of."""

    frame: int
    pixels: torch.Tensor
    show: bool
    where: str = "keyframe"
    given: geometry.Size | None = None
    small: torch.Tensor | None = None
    source: Source | None = None


def canvas_target(canvas: str, items: Sequence[KeyframeItem], width: int, height: int, length: int) -> Target:
    """The target of one of CANVASES. Raises ValueError for "first image" without a keyframe, or with one so narrow
    that its canvas is beyond ComfyUI's sizes."""
    if canvas not in CANVASES:
        raise ValueError(f"canvas: expected {' or '.join(CANVASES)}, got {canvas!r}. Choose one.")
    if canvas == CANVASES[1]:
        width, height = _own_canvas(items)
    return resolve_target(width, height, length)


def _own_canvas(items: Sequence[KeyframeItem]) -> geometry.Size:
    if not items:
        raise ValueError(
            f"canvas: expected a keyframe for {CANVASES[1]!r}, got none. Connect one, or choose {CANVASES[0]!r}."
        )
    size = size_of(items[0].pixels, items[0].where)
    canvas = geometry.canvas_size(*size)
    if max(canvas) > MAX_SIDE:
        raise ValueError(
            f"{items[0].where}: expected a picture whose canvas is at most {MAX_SIDE} wide and high, got "
            f"{_by(size)}, which makes {_by(canvas)}. Crop it, or choose {CANVASES[0]!r} on canvas."
        )
    return canvas


def _by(size: geometry.Size) -> str:
    return f"{size[0]}x{size[1]}"


def fit_keyframes(
    items: Sequence[KeyframeItem], target: Target, background: RGB = WHITE, outlines: bool = False
) -> list[Keyframe]:
    """Each picture on the canvas at its frame, in the order given. Raises ValueError naming the socket, or both
    sockets of two keyframes at one frame. outlines: sizes alone, no picture is fitted."""
    taken: dict[int, str] = {}
    for item in items:
        frame = resolved_frame(item, target)
        if frame in taken:
            raise ValueError(
                f"{taken[frame]} and {item.where}: expected keyframes at different frames, got frame {frame} for both. "
                "Move one of them, or remove it."
            )
        taken[frame] = item.where
    _check_seen(items, target)
    found = []
    for i, (item, frame) in enumerate(zip(items, taken, strict=True)):
        made = (_outline if outlines else _fit)(item, frame, i, target, background)
        how = (_fit_of(item, i), target.width, target.height, background, item.pad_colour)
        found.append(replace(made, source=Source(item.pixels, "image", how, 1)))
    return found


def _check_seen(items: Sequence[KeyframeItem], target: Target) -> None:
    """Pictures have the canvas' sides when the encoder sees them, so it is the canvas that must not be too narrow."""
    shown = [item.where for item in items if item.show]
    if shown and max(target.width, target.height) > MAX_ASPECT * min(target.width, target.height):
        raise ValueError(
            f"{', '.join(shown)}: expected a canvas of at most {MAX_ASPECT}:1 for pictures that the text encoder sees, "
            f"got {_by((target.width, target.height))}. Change width or height, or pin without showing."
        )


def _fit(item: KeyframeItem, frame: int, position: int, target: Target, background: RGB) -> Keyframe:
    told(f"fitting {item.where}")
    pixels = single(item.pixels, item.where, background)
    fitted = _fitted(pixels, item, position, (target.width, target.height))
    return Keyframe(frame, fitted, item.show, item.where, size_of(item.pixels, item.where))


def _outline(item: KeyframeItem, frame: int, position: int, target: Target, background: RGB) -> Keyframe:
    given, size = size_of(item.pixels, item.where), (target.width, target.height)
    thin = thinned(item.pixels[0], *reduced(size))
    small = _fitted(single(thin[None], item.where, background), item, position, reduced(size))
    return Keyframe(frame, blank(*size), item.show, item.where, given, small[None])


def _fitted(pixels: torch.Tensor, item: KeyframeItem, position: int, size: geometry.Size) -> torch.Tensor:
    fit = _fit_of(item, position)
    return geometry.fit_keyframe(pixels, *size, fit, where=item.where, colour=item.pad_colour)


def _fit_of(item: KeyframeItem, position: int) -> str:
    return geometry.released_fit(position) if item.fit == "released" else item.fit


def resolved_frame(item: KeyframeItem, target: Target) -> int:
    """The frame that `second` or `frame` means. Raises ValueError naming the socket when it is outside the video."""
    if item.second is not None:
        return _frame_at(item.second, item.where, target)
    frame = item.frame if item.frame >= 0 else target.frames + item.frame
    if not 0 <= frame < target.frames:
        raise ValueError(
            f"{item.where}: expected a frame from {-target.frames} to {target.frames - 1} of the video's "
            f"{target.frames} frames, got {item.frame}. Choose one inside, or raise length."
        )
    return frame


def _frame_at(second: float, where: str, target: Target) -> int:
    """The nearest frame, halves up. Below zero counts from the end of the video, which is itself still inside: its
    nearest frame is the last one. -0.0 is the start."""
    place = second * FPS + (target.frames if second < 0 else 0)
    nearest = math.floor(place + 0.5) if math.isfinite(place) else -1
    if not 0 <= nearest <= target.frames:
        end = target.frames / FPS
        raise ValueError(
            f"{where}: expected a second from -{end:.3f} to {end:.3f} of the video's {target.frames} frames at {FPS} "
            f"fps, got {second:g}. Choose one inside, or raise length."
        )
    return min(nearest, target.frames - 1)


def shown_images(keyframes: Iterable[Keyframe]) -> list[torch.Tensor]:
    """What `CLIP.tokenize(images=)` of every H3 CLIP reads: IMAGE [1, H, W, 3] each; of outlines their blank pixels."""
    return [(to_image(k.pixels) if k.small is None else k.pixels)[None] for k in keyframes if k.show]


def keyframe_blocks(keyframes: Iterable[Keyframe], vae: Any) -> list[dict[str, Any]]:
    """`minimax_keyframes`; none without a VAE. Raises ValueError naming vae for one of another model."""
    if vae is None:
        return []
    return [{"resolved_frame_index": k.frame, "latent": encode_pixels(vae, k.pixels[None])} for k in keyframes]
