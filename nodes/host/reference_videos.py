"""Reference videos: frames at any rate -> the 24 fps frames that are used.

Contract: frames are dropped or duplicated whole to 24 fps, then cut to the target's length and to 17k + 5 frames
(ComfyUI's rule). Nothing is converted that is not used. Errors name the socket.
"""

from __future__ import annotations

import math

import torch

from ...encoder import geometry
from ...encoder.pixels import FPS, resample_indices
from ..chains import VideoItem
from ..colours import RGB
from .images import to_rgb
from .reference_limits import MOST_VIDEO_FRAMES, check_aspect, check_length, checked_rate

VIDEO_RULE = "host"


def reach(fps: float, frames: int = MOST_VIDEO_FRAMES) -> int:
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
    return to_rgb(item.frames[: reach(item.fps, count)], item.where, background, used_indices(item, count))


def used_indices(item: VideoItem, count: int) -> list[int]:
    """Which source frame each of the first `count` frames at 24 fps is."""
    reached = len(item.frames[: reach(item.fps, count)])
    return resample_indices(reached, item.fps, where=item.where)[:count]


def frames_given(item: VideoItem) -> int:
    """How many frames the video had before its unused end was dropped."""
    return len(item.frames) if item.total is None else item.total
