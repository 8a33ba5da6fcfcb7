"""A VIDEO -> the frames that a request can use of it, its rate and its sound.

Contract: no more frames are kept than the longest reference video can use. Where ComfyUI can trim a file before it is
decoded (newer releases), no more are decoded; the sound is whole all the same, then read by itself. Frames that a file
times at another pace than the rate it names are told apart. Errors name the socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import torch
from comfy_api.latest import InputImpl

from .images import to_rgb
from .reference_limits import RATES, checked_rate
from .reference_videos import reach
from .stop import heed_stop

SPARE_SECONDS = 2.0  # decoded past what can be used: the times of some files start above zero
# TypeError: ComfyUI compares the times of frames, and a raw stream has none
UNREADABLE = (av.FFmpegError, OSError, ValueError, LookupError, StopIteration, TypeError)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A VIDEO: frames [T, H, W, C] that can be used, of `total`; frames per second as the file names them; ComfyUI
    audio or None. played: frames per second by the times of the frames; None where they have none."""

    frames: torch.Tensor
    total: int
    fps: float
    sound: Any
    played: float | None = None


@dataclass(frozen=True, eq=False)
class _Read:
    parts: Any  # ComfyUI's VideoComponents
    total: int
    sound: Any
    played: float | None = None


def decode(video: Any, where: str, with_sound: bool = True) -> Decoded:
    """Raises ValueError naming `where` when it is no VIDEO, or one that cannot be decoded."""
    if not hasattr(video, "get_components"):
        raise ValueError(f"{where}: expected a VIDEO, got {type(video).__name__}. Connect Load Video, or use frames.")
    try:
        read = _read(video, with_sound)
    except UNREADABLE as error:
        raise ValueError(
            f"{where}: expected a video that can be decoded, got {type(error).__name__}: {error}. Check the file, or "
            "convert it to mp4."
        ) from error
    if not read.total:
        raise ValueError(f"{where}: expected a video with pictures, got none. Check the file, or the trim before it.")
    fps = checked_rate(read.parts.frame_rate, f"{where}, video")
    return Decoded(_kept(read.parts, fps, where), read.total, fps, read.sound if with_sound else None, read.played)


def _kept(parts: Any, fps: float, where: str) -> torch.Tensor:
    frames = parts.images[: reach(fps)]
    alpha = getattr(parts, "alpha", None)  # of newer releases, beside the colours
    if alpha is not None:
        return torch.cat([frames, alpha[: len(frames)]], dim=-1)
    # a quarter of the floats, of which ComfyUI would keep every frame
    return to_rgb(frames, where) if frames.shape[-1] == 3 else frames


def _read(video: Any, with_sound: bool) -> _Read:
    """As much as has to be decoded. A video that is not on file is read as it is: to trim it, ComfyUI would compress
    it first."""
    if not isinstance(video, InputImpl.VideoFromFile):
        parts = video.get_components()
        return _Read(parts, len(parts.images), parts.audio)
    rate = float(video.get_frame_rate())
    known = RATES[0] <= rate <= RATES[1]
    seconds = reach(rate) / rate + SPARE_SECONDS if known else 0.0
    if known and hasattr(video, "as_trimmed") and video.get_duration() > seconds:
        parts = video.as_trimmed(0, seconds, strict_duration=False).get_components()
        if len(parts.images) >= reach(rate):  # else its pace is another, or its sound alone is long
            total = max(len(parts.images), _count(video))
            return _Read(parts, total, whole_sound(video) if with_sound else None, _pace(video, parts, seconds))
        del parts
    parts = video.get_components()
    return _Read(parts, len(parts.images), parts.audio, _pace(video, parts))


def _window(video: Any) -> tuple[float, float]:
    """Start and seconds that a file was trimmed to, 0 seconds for all of it. Older releases cannot trim."""
    return video.get_active_trim_window() if hasattr(video, "get_active_trim_window") else (0.0, 0.0)


def _count(video: Any) -> int:
    """Frames of a file as its header counts them, else its packets, which are not decoded."""
    with av.open(video.get_stream_source()) as container:
        counted = container.streams.video[0].frames
    return counted if counted and not any(_window(video)) else len(_times(video))


def _pace(video: Any, parts: Any, seconds: float = 0.0) -> float | None:
    """Frames per second by the times of the frames that were decoded, `seconds` of them. Counted where they were
    decoded: some formats have packets that show nothing."""
    times = _times(video, seconds)
    span = max(times) - min(times) if times else 0.0
    return (len(parts.images) - 1) / span if span > 0 else None


def _times(video: Any, seconds: float = 0.0) -> list[float]:
    """When the pictures of a file are shown, within its trim, or in `seconds` from its start."""
    start, most = _window(video)
    end = start + (seconds or most or math.inf)
    times = []
    with av.open(video.get_stream_source()) as container:
        for packet in container.demux(container.streams.video[0]):
            heed_stop()
            if packet.pts is not None and start <= (time := float(packet.pts * packet.time_base)) < end:
                times.append(time)
            if packet.dts is not None and float(packet.dts * packet.time_base) >= end:
                break
    return times


def whole_sound(video: Any) -> dict[str, Any] | None:
    """The sound of a file, within the trim that it came with, as ComfyUI's own decoder gives it beside the pictures:
    the last stream that can be decoded, None without one. waveform [1, C, L]."""
    start, most = _window(video)
    chunks: list[np.ndarray] = []
    with av.open(video.get_stream_source()) as container:
        streams = [stream for stream in container.streams.audio if stream.codec_context is not None]
        if not streams:
            return None
        floats, first, rate = av.AudioResampler(format="fltp"), None, int(streams[-1].sample_rate or 1)
        for packet in container.demux(streams[-1]):
            heed_stop()
            for frame in packet.decode():
                first = frame.time if first is None else first
                chunks += [even.to_ndarray() for even in floats.resample(frame)]
    if not chunks:
        return None
    skipped = max(0, int((start - (first or 0.0)) * rate))
    samples = np.concatenate(chunks, axis=1)[:, skipped:]
    samples = samples[:, : int(most * rate)] if most else samples
    return {"waveform": torch.from_numpy(samples)[None], "sample_rate": rate}
