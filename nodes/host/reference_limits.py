"""How many references a request may have, of which shape and length: the limits of the released model.

Contract: 9 pictures, 3 videos and 3 sounds, 12 references in all; a soundtrack belongs to its video and is not counted;
sound never alone; sides within 1:4..4:1; a video lasts at least 2 s, what is used of all videos at most 15 s. Pictures
that the text encoder alone sees are not counted; with them a request may grow past nine and twelve, which is a warning.
Errors name the sockets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from ...encoder.geometry import REFERENCE_MAX_ASPECT
from ...encoder.pixels import FPS
from ..chains import AudioItem, ImageItem, Reference, VideoItem

MOST_PICTURES, MOST_VIDEOS, MOST_SOUNDS, MOST_REFERENCES = 9, 3, 3, 12
LEAST_VIDEO_FRAMES = 2 * FPS
MOST_VIDEO_FRAMES = 362  # 15 s on the grid of 17k + 5
RATES = 0.01, 1000.0


def check_counts(items: Sequence[Reference]) -> None:
    """Raises ValueError naming the sockets when there are too many references, or sound alone."""
    counted = [item for item in items if not (isinstance(item, ImageItem) and item.vision_only)]
    fewer = "Use fewer, or make some vision only."
    _check_most(counted, ImageItem, MOST_PICTURES, "pictures", fewer)
    _check_most(counted, VideoItem, MOST_VIDEOS, "videos", "Use fewer.")
    _check_most(counted, AudioItem, MOST_SOUNDS, "sounds", "Use fewer; soundtracks of videos are not counted.")
    _check_most(counted, Reference, MOST_REFERENCES, "references in all", fewer.replace("some", "some pictures"))
    if items and all(isinstance(item, AudioItem) for item in items):
        raise ValueError(
            f"{', '.join(item.where for item in items)}: expected a picture or a video beside the sound, got sound "
            "alone. Connect one, or describe the sound in the prompt."
        )


def _check_most(items: Sequence[Reference], kinds: Any, most: int, what: str, remedy: str) -> None:
    found = [item for item in items if isinstance(item, kinds)]
    count = sum(map(pictures_of, found))
    if count > most:
        sockets = ", ".join(item.where + (f" ({n})" if (n := pictures_of(item)) > 1 else "") for item in found)
        raise ValueError(f"{sockets}: expected at most {most} {what}, got {count}. {remedy}")


def pictures_of(item: Reference) -> int:
    """How many references an item is: as many as an image batch has pictures, else one."""
    if isinstance(item, ImageItem) and isinstance(item.pixels, torch.Tensor) and item.pixels.dim() == 4:
        return len(item.pixels)
    return 1


def check_aspect(pixels: Any, where: str) -> None:
    """Raises ValueError for pixels [.., H, W, C] outside 1:4..4:1; what is no such tensor is left to others."""
    if not isinstance(pixels, torch.Tensor) or pixels.dim() != 4 or 0 in pixels.shape:
        return
    height, width = pixels.shape[1:3]
    if max(height, width) > REFERENCE_MAX_ASPECT * min(height, width):
        raise ValueError(
            f"{where}: expected sides within 1:{REFERENCE_MAX_ASPECT} and {REFERENCE_MAX_ASPECT}:1, got "
            f"{width}x{height}. Crop it."
        )


def checked_rate(fps: Any, where: str) -> float:
    """Frames per second as a float. Raises ValueError for what is no sensible rate, NaN too."""
    low, high = RATES
    if not (isinstance(fps, Real) and low <= fps <= high):
        raise ValueError(
            f"{where}: expected a frame rate from {low:g} to {high:g}, got {fps}. Set it to the rate of the frames."
        )
    return float(fps)


def check_length(frames: int, fps: float, where: str) -> int:
    """How long `frames` at `fps` are at 24 fps. Raises ValueError for less than 2 s."""
    long = math.floor(frames * FPS / fps + 0.5)
    if long < LEAST_VIDEO_FRAMES:
        raise ValueError(
            f"{where}: expected a reference video of at least {LEAST_VIDEO_FRAMES // FPS} s ({LEAST_VIDEO_FRAMES} "
            f"frames at {FPS} fps), got {frames} at {fps:g} fps ({frames / fps:.2f} s). Use a longer clip, or connect "
            "its frames as reference pictures."
        )
    return long


def check_together(used: Sequence[tuple[str, int]]) -> None:
    """`used`: socket and frames of every video. Raises ValueError when they are more than 15 s together."""
    total = sum(frames for _, frames in used)
    if total > MOST_VIDEO_FRAMES:
        sockets = ", ".join(f"{where} ({frames})" for where, frames in used)
        raise ValueError(
            f"{sockets}: expected at most {MOST_VIDEO_FRAMES} frames of reference videos together "
            f"({MOST_VIDEO_FRAMES // FPS} s), got {total}. Use shorter clips, or lower length: no more than that is "
            "used of each."
        )
