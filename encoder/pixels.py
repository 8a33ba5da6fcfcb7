"""Prepared RGB pixels -> the patches that the vision tower reads.

Contract: bit for bit what the two released processors compute (transformers' Qwen2VLImageProcessor and
Qwen3VLVideoProcessor with the released preprocessor configs), on torch alone. Both resize uint8 with an antialiased
bicubic filter to multiples of 32 and normalise to -1..1, so pixels stay uint8 until the last step.

Every function takes torch tensors or numpy arrays, channels last: an image [H, W, 3] or frames [T, H, W, 3], either
uint8 or float 0..1. Floats become `round(255 x)`; small overshoot (resizing leaves some) is clamped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .cache.digest import frames_digests

logger = logging.getLogger(__name__)

PATCH = 16  # pixels per patch side
MERGE = 2  # patches per token side
TEMPORAL_PATCH = 2  # frames per patch
FACTOR = PATCH * MERGE  # both sides become multiples of this
PATCH_WIDTH = 3 * TEMPORAL_PATCH * PATCH * PATCH  # 1536

IMAGE_MIN_PIXELS, IMAGE_MAX_PIXELS = 65_536, 16_777_216
VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS = 4_096, 25_165_824  # of all frames together
MAX_ASPECT = 200

FPS = 24  # the model's own frame rate
SAMPLE_STRIDE = 12  # the encoder sees every 12th frame: 2 fps
SAMPLES_PER_SECOND = FPS / SAMPLE_STRIDE

_NUMPY_DTYPES = (np.uint8, np.float16, np.float32, np.float64)


@dataclass(frozen=True, eq=False)
class Patches:
    """`pixel_values` float32 [N, 1536] in 2x2 merge-block order, and `grid_thw` int64 [n, 3], one row per reference:
    patches in time, height, width. Both on the CPU; several references are concatenated in request order.
    `digests`: of what each temporal step of each reference shows (cache/digest.py), in order; None where not known."""

    pixel_values: torch.Tensor
    grid_thw: torch.Tensor
    digests: tuple[bytes, ...] | None = None


def image_patches(pixels: Any, *, where: str = "image") -> Patches:
    """One image [H, W, 3] -> its patches, grid (1, h, w). The image fills both frames of the temporal patch."""
    image = to_uint8(pixels, 3, where)
    height, width = image_size(*image.shape[:2], where=where)
    frame = _resize(image.permute(2, 0, 1)[None], height, width)  # [1, 3, H, W]
    return _patchify(frame.expand(TEMPORAL_PATCH, -1, -1, -1))


def video_patches(frames: Any, *, where: str = "video") -> Patches:
    """Sampled frames [T, H, W, 3], T >= 2 -> their patches, grid (ceil(T/2), h, w). An odd count repeats the last."""
    video = to_uint8(frames, 4, where)
    height, width = video_size(*video.shape[:3], where=where)
    video = _resize(video.permute(0, 3, 1, 2), height, width)  # [T, 3, H, W]
    if len(video) % TEMPORAL_PATCH:
        video = torch.cat([video, video[-1:]])
    return _patchify(video)


def concatenate(patches: Sequence[Patches]) -> Patches | None:
    """Patches of several references in request order -> one Patches; None of none."""
    if not patches:
        return None
    if len(patches) == 1:
        return patches[0]
    digests = [p.digests for p in patches if p.digests is not None]
    known = tuple(digest for each in digests for digest in each) if len(digests) == len(patches) else None
    return Patches(torch.cat([p.pixel_values for p in patches]), torch.cat([p.grid_thw for p in patches]), known)


def image_size(height: int, width: int, *, where: str = "image") -> tuple[int, int]:
    """Height and width at which an image is encoded: multiples of 32, 65,536 to 16,777,216 pixels."""
    _check_sides(height, width, where)
    return _smart_size(1, 1, height, width, IMAGE_MIN_PIXELS, IMAGE_MAX_PIXELS)


def video_size(num_frames: int, height: int, width: int, *, where: str = "video") -> tuple[int, int]:
    """Height and width at which `num_frames` sampled frames are encoded; the pixel limits are for all of them
    together. Python's round makes 25 frames count as 24, as released."""
    if num_frames < TEMPORAL_PATCH:
        raise ValueError(
            f"{where}: expected at least {TEMPORAL_PATCH} sampled frames, got {num_frames}. Use a longer clip, "
            "or an image reference."
        )
    _check_sides(height, width, where)
    if min(height, width) < FACTOR:
        scale = FACTOR / min(height, width)
        height, width = int(height * scale), int(width * scale)
    counted = round(num_frames / TEMPORAL_PATCH) * TEMPORAL_PATCH
    return _smart_size(num_frames, counted, height, width, VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS)


def sample_video(frames: Any, fps: float = FPS, *, where: str = "video") -> tuple[Any, tuple[float, ...]]:
    """Frames [T, H, W, 3] at `fps` -> the frames the encoder sees and their times in seconds, 2 per second of 24 fps.
    The result has the input's type and dtype; nothing is copied that is not sampled."""
    frames = pixel_tensor(frames, 4, where)
    indices = sample_indices(len(frames), fps, where=where)
    return frames[torch.tensor(indices, dtype=torch.int64)], tuple(i / SAMPLES_PER_SECOND for i in range(len(indices)))


def sample_indices(num_frames: int, fps: float = FPS, *, where: str = "video") -> list[int]:
    """Which of `num_frames` source frames the encoder sees (none of a clip shorter than half a 24 fps frame)."""
    return resample_indices(num_frames, fps, where=where)[::SAMPLE_STRIDE]


def resample_indices(num_frames: int, fps: float, *, where: str = "video") -> list[int]:
    """Source frame for every 24 fps frame, whole frames dropped or duplicated as ffmpeg's `fps` filter does: frame k
    starts at slot round-half-up(k * 24 / fps) and is held until the next one starts; the end is rounded alike."""
    if not (isinstance(fps, Real) and math.isfinite(fps) and fps > 0):
        raise ValueError(f"{where}: expected a frame rate above 0, got {fps!r}. Pass the rate of the frames.")
    scale = FPS / float(fps)
    starts = [math.floor(k * scale + 0.5) for k in range(num_frames + 1)]
    return [k for k in range(num_frames) for _ in range(starts[k + 1] - starts[k])]


def to_uint8(pixels: Any, ndim: int | None = None, where: str = "pixels") -> torch.Tensor:
    """Pixels [..., H, W, 3] -> a uint8 tensor on the CPU. uint8 passes through; floats become round(255 x), clamped.

    Errors: another type, dtype, rank or channel count, no pixels, NaN or infinity, floats that are plainly 0..255."""
    tensor = pixel_tensor(pixels, ndim, where).detach().cpu()
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.ndim == 3:
        return _quantise(tensor, where)
    # Frame by frame: a float clip is gigabytes, and each step of the rounding would copy it.
    return torch.stack([_quantise(frame, where) for frame in tensor])


def pixel_tensor(pixels: Any, ndim: int | None = None, where: str = "pixels") -> torch.Tensor:
    """The same pixels as a torch tensor, checked but neither copied nor converted."""
    if isinstance(pixels, np.ndarray):
        pixels = _from_numpy(pixels, where)
    if not isinstance(pixels, torch.Tensor):
        raise ValueError(
            f"{where}: expected a torch tensor or numpy array, got {type(pixels).__name__}. Convert it first."
        )
    if pixels.dtype != torch.uint8 and not pixels.dtype.is_floating_point:
        raise ValueError(
            f"{where}: expected uint8 or float 0..1 pixels, got {pixels.dtype}. Convert them to one of the two."
        )
    _check_shape(tuple(pixels.shape), (3, 4) if ndim is None else (ndim,), where)
    return pixels


def _from_numpy(pixels: np.ndarray, where: str) -> torch.Tensor:
    if pixels.dtype not in _NUMPY_DTYPES:
        raise ValueError(
            f"{where}: expected uint8 or float 0..1 pixels, got {pixels.dtype}. Convert them to one of the two."
        )
    # torch takes no negative strides and warns about read-only memory.
    if min(pixels.strides, default=0) < 0 or not pixels.flags.writeable:
        pixels = np.array(pixels)
    return torch.from_numpy(pixels)


def _check_shape(shape: tuple[int, ...], ranks: tuple[int, ...], where: str) -> None:
    layout = " or ".join({3: "[H, W, 3]", 4: "[T, H, W, 3]"}[rank] for rank in ranks)
    got = f"{where}: expected pixels of shape {layout}, got {list(shape)}."
    if len(shape) not in ranks:
        fix = "Pass the images of a batch one by one." if ranks == (3,) else "Stack the frames on a first axis."
        raise ValueError(f"{got} {fix}")
    if shape[-1] == 4:
        raise ValueError(f"{got} There is an alpha channel: composite it on a background colour first.")
    if shape[-1] != 3:
        raise ValueError(f"{got} Convert to RGB with channels last.")
    if 0 in shape:
        raise ValueError(f"{got} There are no pixels in it; check the source.")


def _quantise(frame: torch.Tensor, where: str) -> torch.Tensor:
    frame = frame if frame.dtype == torch.float64 else frame.float()
    low, high = (float(v) for v in torch.aminmax(frame))  # both are NaN if any pixel is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{where}: expected finite pixels, got NaN or infinity. Check the node that made them.")
    # HDR highlights reach far above 1 and are clamped, but a picture that lies above 2 on average is on another scale.
    if high > 2 and float(frame.mean()) > 2:
        raise ValueError(f"{where}: expected floats 0..1, got {low:g}..{high:g}. Divide by 255, or pass uint8.")
    if low < -0.5 or high > 1.5:
        logger.warning("%s: pixels of %g..%g were clamped to 0..1.", where, low, high)
    return (frame * 255).round_().clamp_(0, 255).to(torch.uint8)


def _check_sides(height: int, width: int, where: str) -> None:
    if min(height, width) < 1:
        raise ValueError(f"{where}: expected a size of at least 1x1, got {width}x{height}. Check the source.")
    aspect = max(height, width) / min(height, width)
    if aspect > MAX_ASPECT:
        raise ValueError(
            f"{where}: expected an aspect ratio of at most {MAX_ASPECT}, got {aspect:.1f} ({width}x{height}). Crop it."
        )


def _smart_size(n: int, counted: int, height: int, width: int, smallest: int, largest: int) -> tuple[int, int]:
    """The released size rule. `n` frames; `counted` is n as the limits count it."""
    rounded_h, rounded_w = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if counted * rounded_h * rounded_w > largest:
        beta = math.sqrt((n * height * width) / largest)
        return (
            max(FACTOR, math.floor(height / beta / FACTOR) * FACTOR),
            max(FACTOR, math.floor(width / beta / FACTOR) * FACTOR),
        )
    if counted * rounded_h * rounded_w < smallest:
        beta = math.sqrt(smallest / (n * height * width))
        return math.ceil(height * beta / FACTOR) * FACTOR, math.ceil(width * beta / FACTOR) * FACTOR
    return rounded_h, rounded_w


def _resize(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [T, 3, h, w] -> uint8 [T, 3, height, width]."""
    if frames.shape[-2:] == (height, width):
        return frames
    return F.interpolate(frames, size=(height, width), mode="bicubic", antialias=True)


def _patchify(frames: torch.Tensor) -> Patches:
    """uint8 [T, 3, H, W], T even, sides multiples of 32 -> patches: merge blocks row by row, the 2x2 patches of each,
    and within a patch channel, time, y, x."""
    t, h, w = len(frames) // TEMPORAL_PATCH, frames.shape[2] // PATCH, frames.shape[3] // PATCH
    blocks = frames.reshape(t, TEMPORAL_PATCH, 3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH)
    blocks = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)  # [t, h/2, w/2, 2, 2, C, 2, y, x]
    values = blocks.reshape(t * h * w, PATCH_WIDTH).to(torch.float32).sub_(127.5).div_(127.5)
    digests = frames_digests(frames, TEMPORAL_PATCH, h, w)
    return Patches(values, torch.tensor([[t, h, w]], dtype=torch.int64), digests)
