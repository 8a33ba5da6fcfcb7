"""Small videos made with PyAV, for tests of VIDEO inputs.

Contract: `write_video(file, frames, fps, ...)` gives a file that ComfyUI's Load Video reads: `frames` flat pictures,
frame k of grey level `level_of(k)`, which H.264 keeps within a few levels; with `tone` a mono sine beside them.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

RATE = 32000


def level_of(frame: int) -> int:
    return 16 + frame * 4 % 224


def write_video(
    file: Path, frames: int, fps: float | Fraction, width: int = 96, height: int = 64, tone: float = 0.0
) -> Path:
    """tone: seconds of sound; 0 for a silent file."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        sound = container.add_stream("aac", rate=RATE, layout="mono") if tone else None
        for k in range(frames):
            picture = np.full((height, width, 3), level_of(k), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
        if sound is not None:
            _mux_tone(container, sound, tone)
    return file


def write_tone(file: Path, seconds: float) -> Path:
    """A file without pictures."""
    with av.open(str(file), "w") as container:
        _mux_tone(container, container.add_stream("aac", rate=RATE, layout="mono"), seconds)
    return file


def _mux_tone(container, stream, seconds: float) -> None:
    wave = np.sin(np.arange(round(seconds * RATE)) / 20).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
    frame.sample_rate, frame.pts = RATE, 0
    container.mux(stream.encode(frame))
    container.mux(stream.encode())
