"""Reference videos: VIDEO or frames at any rate -> the 24 fps frames that are used.

Contract: frames are dropped or duplicated whole to 24 fps, then cut to the target's length and to 17k + 5 frames
(ComfyUI's rule). Nothing is converted that is not used. A VIDEO is decoded once, and no more of it is kept than the
longest video can use. Errors name the socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import av
import torch

from ...encoder import geometry
from ...encoder.pixels import FPS, resample_indices, to_uint8
from ..chains import VideoItem
from ..colours import RGB
from .images import to_rgb
from .reference_limits import MOST_VIDEO_FRAMES, check_aspect, check_length, checked_rate

VIDEO_RULE = "host"


@dataclass(frozen=True, eq=False)
class Decoded:
    """A VIDEO: frames [T, H, W, C] that can be used, of `total`; frames per second; ComfyUI audio or None."""

    frames: torch.Tensor
    total: int
    fps: float
    sound: Any


def decode(video: Any, where: str) -> Decoded:
    """Raises ValueError naming `where` when it is no VIDEO, or one that cannot be decoded."""
    if not hasattr(video, "get_components"):
        raise ValueError(f"{where}: expected a VIDEO, got {type(video).__name__}. Connect Load Video, or use frames.")
    try:
        parts = video.get_components()
    except (av.FFmpegError, OSError, ValueError, LookupError, StopIteration) as error:
        raise ValueError(
            f"{where}: expected a video that can be decoded, got {type(error).__name__}: {error}. Check the file, or "
            "convert it to mp4."
        ) from error
    total = len(parts.images)
    if not total:
        raise ValueError(f"{where}: expected a video with pictures, got none. Check the file, or the trim before it.")
    fps = checked_rate(parts.frame_rate, f"{where}, video")
    frames = parts.images[: _reach(fps)]
    alpha = getattr(parts, "alpha", None)  # of newer releases, beside the colours
    if alpha is not None:
        frames = torch.cat([frames, alpha[: len(frames)]], dim=-1)
    elif frames.shape[-1] == 3:
        frames = to_uint8(frames, 4, where)  # a quarter of the floats, of which ComfyUI would keep every frame
    return Decoded(frames, total, fps, parts.audio)


def _reach(fps: float, frames: int = MOST_VIDEO_FRAMES) -> int:
    """Source frames that `frames` at 24 fps can come from, and one more."""
    return math.ceil((frames + 1) * fps / FPS) + 1


def check_video(item: VideoItem) -> int:
    """How long a video is in frames at 24 fps. Raises ValueError naming the socket for one that no request can use."""
    check_aspect(item.frames, item.where)
    if not isinstance(item.frames, torch.Tensor) or item.frames.dim() != 4 or 0 in item.frames.shape:
        to_rgb(item.frames, item.where)  # which says what is wrong with it
    return check_length(frames_given(item), checked_rate(item.fps, item.where), item.where)


def count_used(item: VideoItem, target_frames: int) -> int:
    """Frames at 24 fps that are used of a video, 17k + 5. Raises ValueError naming the socket."""
    return geometry.reference_video_frames(check_video(item), target_frames, VIDEO_RULE)


def used_frames(item: VideoItem, count: int, background: RGB) -> torch.Tensor:
    """The first `count` frames at 24 fps, at the video's own size: uint8 [count, H, W, 3]."""
    source = item.frames[: _reach(item.fps, count)]
    indices = resample_indices(len(source), item.fps, where=item.where)[:count]
    source = source[:count] if indices == list(range(count)) else source[indices]
    return to_rgb(source, item.where, background)


def frames_given(item: VideoItem) -> int:
    """How many frames the video had before its unused end was dropped."""
    return len(item.frames) if item.total is None else item.total
