"""The sizes and frame counts that a request is prepared to before anything is encoded.

Contract: the released rules (canvas, keyframes, reference images and videos, the 17k+5 frame grid), and beside them
those of ComfyUI's own H3 nodes where the two differ, each under its name. Pixels are resized by PIL's LANCZOS on
uint8; a float image is rounded first. Pixels that have the size already are passed through.

Sizes are (width, height) in pixels here, as the rules and nodes have them. Images are [H, W, 3] and frames
[T, H, W, 3], torch or numpy, uint8 or float 0..1; results are uint8 torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from .lanczos import window
from .pixels import FPS, to_uint8

MULTIPLE = 32
CANVAS_SHORT_EDGE = 768
CANVAS_MAX_PIXELS = 768 * 1344
REFERENCE_SHORT_EDGE = 2048
REFERENCE_MAX_ASPECT = 4
FRAMES_PER_CHUNK, FIRST_FRAMES = 17, 5  # the video VAE takes 17k+5 frames and makes 5k+2 latent frames of them
LATENTS_PER_CHUNK, FIRST_LATENTS = 5, 2
AUDIO_LATENTS_PER_SECOND = 40
COVERING_MAX_PIXELS = 1 << 26  # a larger picture is never made only to be cropped: 256 MiB in PIL

REFERENCE_SIZES = ("match", "max", "official", "none")
RULES = ("released", "host")

Size = tuple[int, int]


def canvas_size(width: int, height: int) -> Size:
    """The generation canvas for an aspect ratio: short edge 768, at most 768 * 1344 pixels, then each side rounded to
    32 (so the area may end slightly above)."""
    _check_size(width, height)
    ratio = width / height
    canvas_w, canvas_h = CANVAS_SHORT_EDGE * max(ratio, 1.0), CANVAS_SHORT_EDGE / min(ratio, 1.0)
    if canvas_w * canvas_h > CANVAS_MAX_PIXELS:
        scale = math.sqrt(CANVAS_MAX_PIXELS / (canvas_w * canvas_h))
        canvas_w, canvas_h = canvas_w * scale, canvas_h * scale
    return _rounded(canvas_w), _rounded(canvas_h)


def reference_image_size(
    width: int, height: int, mode: str = "match", target_width: int | None = None, target_height: int | None = None
) -> Size:
    """The size a reference image is prepared to, aspect kept.

    "match": at most the target's pixel area, never enlarged. "max": short edge at most 2048, never enlarged.
    "official": short edge exactly 2048, enlarged too; aspect within 1:4..4:1. All three round each side to 32.
    "none": as it is."""
    _check_size(width, height)
    if mode == "none":
        return width, height
    scale = _reference_scale(width, height, mode, target_width, target_height)
    return _rounded(width * scale), _rounded(height * scale)


def _reference_scale(width: int, height: int, mode: str, target_width: int | None, target_height: int | None) -> float:
    if mode == "match":
        if not target_width or not target_height:
            raise ValueError(
                f"geometry: expected the target's width and height for mode 'match', got {target_width} and "
                f"{target_height}. Pass both."
            )
        return min(1.0, math.sqrt((target_width * target_height) / (width * height)))
    if mode == "max":
        return min(1.0, REFERENCE_SHORT_EDGE / min(width, height))
    if mode == "official":
        if max(width, height) > REFERENCE_MAX_ASPECT * min(width, height):
            raise ValueError(
                f"geometry: expected a reference image between 1:4 and 4:1, got {width}x{height}. Crop it, or choose "
                "another size mode."
            )
        return REFERENCE_SHORT_EDGE / min(width, height)
    raise ValueError(f"geometry: expected a size mode of {', '.join(REFERENCE_SIZES)}, got {mode!r}. Choose one.")


def reference_video_size(width: int, height: int, rule: str = "released") -> Size:
    """The size a reference video is prepared to: the canvas of its own aspect ratio. The host's rule leaves a video
    that has fewer pixels than its canvas at its own size, rounded to 32."""
    canvas = canvas_size(width, height)
    if _checked_rule(rule) == "host" and width * height < canvas[0] * canvas[1]:
        return _rounded(width), _rounded(height)
    return canvas


def _rounded(side: float) -> int:
    return max(MULTIPLE, round(side / MULTIPLE) * MULTIPLE)


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"geometry: expected a size of at least 1x1, got {width}x{height}. Check the source.")


def _checked_rule(rule: str) -> str:
    if rule not in RULES:
        raise ValueError(f"geometry: expected a rule of {', '.join(RULES)}, got {rule!r}. Choose one.")
    return rule


def snap_frames(frames: int) -> int:
    """The next 17k+5 (5, 22, 39, ...) that holds `frames`; at least 5."""
    return FIRST_FRAMES + max(0, math.ceil((frames - FIRST_FRAMES) / FRAMES_PER_CHUNK)) * FRAMES_PER_CHUNK


def snap_frames_down(frames: int) -> int:
    """The largest 17k+5 within `frames`. Errors: fewer than 5."""
    if frames < FIRST_FRAMES:
        raise ValueError(
            f"geometry: expected at least {FIRST_FRAMES} frames, got {frames}. Use a longer clip, or an image."
        )
    return FIRST_FRAMES + (frames - FIRST_FRAMES) // FRAMES_PER_CHUNK * FRAMES_PER_CHUNK


def latent_frames(frames: int) -> int:
    """Video latent frames of a 17k+5 frame count: 5k+2. Errors: another count."""
    chunks, rest = divmod(frames - FIRST_FRAMES, FRAMES_PER_CHUNK)
    if rest or chunks < 0:
        raise ValueError(f"geometry: expected 17k+5 frames, got {frames}. Use snap_frames first.")
    return chunks * LATENTS_PER_CHUNK + FIRST_LATENTS


def audio_latent_frames(frames: int) -> int:
    """Audio latent frames (40 per second) that go with `frames` at 24 fps."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)


def reference_video_frames(frames: int, target_frames: int, rule: str = "released") -> int:
    """How many leading 24 fps frames of a reference video the encoder is given. Released: as many as the target has.
    The host's rule also cuts them to 17k+5. (A VAE takes snap_frames_down of either.)"""
    kept = min(frames, target_frames)
    return snap_frames_down(kept) if _checked_rule(rule) == "host" else kept


def resize(pixels: Any, width: int, height: int, *, where: str = "geometry") -> torch.Tensor:
    """An image [H, W, 3] stretched to `width` x `height`: uint8 [height, width, 3]."""
    image = to_uint8(pixels, 3, where)
    return image if _size(image) == (width, height) else _lanczos(image, (width, height))


def resize_frames(
    frames: Any, width: int, height: int, *, where: str = "geometry", before_each: Callable[[], None] | None = None
) -> torch.Tensor:
    """Frames [T, H, W, 3], each stretched to `width` x `height`: uint8 [T, height, width, 3]. before_each: called
    before every frame that is resized; what it raises ends the work."""
    video = to_uint8(frames, 4, where)
    if _size(video) == (width, height):
        return video
    _check_size(width, height)
    resized = torch.empty(len(video), height, width, 3, dtype=torch.uint8)
    for frame, made in zip(video, resized, strict=True):
        if before_each is not None:
            before_each()
        made.copy_(_lanczos(frame, (width, height)))
    return resized


def fit_keyframe(
    pixels: Any, width: int, height: int, fit: str, *, where: str = "geometry", colour: tuple[int, int, int] = (0, 0, 0)
) -> torch.Tensor:
    """A keyframe [H, W, 3] put on the canvas by one of KEYFRAME_FITS: uint8 [height, width, 3]. colour: around a
    picture that is fitted by "pad"."""
    if fit not in KEYFRAME_FITS:
        raise ValueError(f"{where}: expected a fit of {', '.join(KEYFRAME_FITS)}, got {fit!r}. Choose one.")
    _check_size(width, height)
    options = {"colour": colour} if fit == "pad" else {}
    return KEYFRAME_FITS[fit](pixels, width, height, where=where, **options)


def released_fit(position: int) -> str:
    """The released fit of the keyframe at `position` among those given: the first is the geometry anchor and is
    stretched, later ones are cover-cropped."""
    return "stretch" if position == 0 else "crop"


def cover_crop(pixels: Any, width: int, height: int, *, where: str = "geometry") -> torch.Tensor:
    """Scaled until it covers the canvas, then cropped around its centre; the released rounding. Of an extreme aspect
    ratio (8000x1 on a canvas would be gigabytes) only the cropped part is computed, to the same bytes."""
    image = to_uint8(pixels, 3, where)
    source_w, source_h = _size(image)
    scale = max(width / source_w, height / source_h)
    covering = max(width, round(source_w * scale)), max(height, round(source_h * scale))
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    if covering[0] * covering[1] > max(COVERING_MAX_PIXELS, 2 * width * height):
        return torch.from_numpy(window(image.numpy(), covering, (left, top), (width, height)))
    image = resize(image, *covering)
    return image[top : top + height, left : left + width].contiguous()


def contain(
    pixels: Any, width: int, height: int, *, colour: tuple[int, int, int] = (0, 0, 0), where: str = "geometry"
) -> torch.Tensor:
    """Scaled until it fits inside the canvas, centred on `colour` (RGB, 0..255)."""
    if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
        raise ValueError(f"geometry: expected a colour of three values 0..255, got {colour}. Correct it.")
    image = to_uint8(pixels, 3, where)
    source_w, source_h = _size(image)
    scale = min(width / source_w, height / source_h)
    inner_w, inner_h = (max(1, round(side * scale)) for side in (source_w, source_h))
    canvas = torch.tensor(colour, dtype=torch.uint8).expand(height, width, 3).clone()
    left, top = (width - inner_w) // 2, (height - inner_h) // 2
    canvas[top : top + inner_h, left : left + inner_w] = resize(image, inner_w, inner_h)
    return canvas


KEYFRAME_FITS: dict[str, Callable[..., torch.Tensor]] = {"stretch": resize, "crop": cover_crop, "pad": contain}


def _size(pixels: torch.Tensor) -> Size:
    return pixels.shape[-2], pixels.shape[-3]


def _lanczos(image: torch.Tensor, size: Size) -> torch.Tensor:
    """uint8 [H, W, 3] -> uint8 [height, width, 3] by PIL."""
    _check_size(*size)
    resized = Image.fromarray(image.numpy()).resize(size, Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(resized))
