"""References -> segments in reading order, from sizes and times alone: labels, ordinals, timestamps, vision blocks.

Contract: `lay_out_each` gives the segments of `presentation.present_each` to the character and to the grid, without
patches: no pixel is read, so that what is wrong with values (NaN, 0..255 in floats) is not noticed. `Layout` is what
both are made with; who makes patches overrides how an image and a video are seen.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, Literal

import torch

from .pixels import (
    FPS,
    MERGE,
    PATCH,
    SAMPLE_STRIDE,
    TEMPORAL_PATCH,
    image_size,
    pixel_tensor,
    sample_video,
    video_size,
)
from .presentation_parts import (
    PROMPT_PART,
    AudioReference,
    ImageReference,
    PixelInputs,
    Presentation,
    Reference,
    Segment,
    TextSegment,
    VideoReference,
    VisionSegment,
)

logger = logging.getLogger(__name__)

Grid = tuple[int, int, int]  # patches in time, height, width


def lay_out(prompt: str, references: Iterable[Reference] = ()) -> Presentation:
    """`presentation.present` without patches."""
    return lay_out_each([prompt], references)[0]


def lay_out_each(prompts: Sequence[str], references: Iterable[Reference] = ()) -> list[Presentation]:
    """`presentation.present_each` without patches. Pixels that have a shape and no memory behind it will do, such as
    `torch.zeros(1, dtype=torch.uint8).expand(height, width, 3)`."""
    layout = Layout()
    layout.add_all(prompts, references)
    return layout.presentations(prompts, PixelInputs())


class Layout:
    """Numbers the references per modality and collects their segments."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.ordinals: Counter[str] = Counter()

    def add_all(self, prompts: Sequence[str], references: Iterable[Reference]) -> None:
        """Raises ValueError for a prompt that is no string and for references that cannot be presented."""
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise ValueError(
                    f"present: expected one string as the prompt, got {type(prompt).__name__}. Pass a str."
                )
        if not isinstance(references, Iterable):
            raise ValueError(
                f"present: expected a list of references, got {type(references).__name__}. Pass [reference], or ()."
            )
        for position, reference in enumerate(references, 1):
            self.add(reference, position)

    def presentations(self, prompts: Sequence[str], patches: PixelInputs) -> list[Presentation]:
        """One a prompt, after what was added; an empty prompt adds no segment."""
        return [
            Presentation((*self.segments, *([TextSegment(prompt, PROMPT_PART)] if prompt else [])), patches)
            for prompt in prompts
        ]

    def see_image(self, pixels: Any, where: str) -> Grid:
        """[H, W, 3] -> the grid at which it is seen."""
        height, width = image_size(*pixel_tensor(pixels, 3, where).shape[:2], where=where)
        return 1, height // PATCH, width // PATCH

    def see_video(self, frames: Any, where: str) -> Grid:
        """Sampled frames [T, H, W, 3] -> the grid at which they are seen."""
        shape = pixel_tensor(frames, 4, where).shape
        height, width = video_size(*shape[:3], where=where)
        return math.ceil(shape[0] / TEMPORAL_PATCH), height // PATCH, width // PATCH

    def add(self, reference: Reference, position: int) -> None:
        if isinstance(reference, ImageReference):
            self.image(reference)
        elif isinstance(reference, VideoReference):
            if reference.has_audio:
                self.label("Audio")
            self.video(reference)
        elif isinstance(reference, AudioReference):
            self.label("Audio")
        else:
            raise ValueError(
                f"present: expected an ImageReference, VideoReference or AudioReference as reference {position}, "
                f"got {type(reference).__name__}. Wrap the pixels in one of them."
            )

    def text(self, text: str, part: str) -> None:
        self.segments.append(TextSegment(text, part))

    def label(self, modality: str) -> str:
        self.ordinals[modality] += 1
        part = f"{modality} {self.ordinals[modality]}"
        self.text(f"<{part}>: ", part)
        return part

    def block(self, modality: Literal["image", "video"], part: str, grid: Grid) -> None:
        _, height, width = grid
        self.segments.append(VisionSegment(modality, height * width // MERGE**2, part, (height, width)))

    def image(self, reference: ImageReference) -> None:
        part = self.label("Picture")
        if reference.timestamp is not None:
            self.text(_stamp(_second(reference.timestamp, _where(part))), part)
        self.block("image", part, self.see_image(reference.pixels, _where(part)))

    def video(self, reference: VideoReference) -> None:
        part = self.label("Video")
        frames, timestamps = _samples(reference, _where(part))
        grid = self.see_video(frames, _where(part))
        for seconds in _pair_times(timestamps):
            self.text(_stamp(seconds), part)
            self.block("video", part, grid)


def _where(part: str) -> str:
    return f"present, <{part}>"


def _stamp(seconds: float) -> str:
    return f"<{seconds + 0.0:.1f} seconds>"  # -0.0 is read as 0.0


def _second(timestamp: Any, where: str) -> float:
    if isinstance(timestamp, bool) or not isinstance(timestamp, Real):
        got = f"{timestamp!r:.60}"
    elif not (math.isfinite(timestamp) and timestamp >= 0):
        got = f"{float(timestamp):g}"
    else:
        return float(timestamp)
    raise ValueError(f"{where}: expected a timestamp in seconds from 0 on, got {got}. Correct it, or pass None.")


def _samples(reference: VideoReference, where: str) -> tuple[Any, tuple[float, ...]]:
    """The sampled frames and their times; at least two."""
    if reference.timestamps is not None:
        return _given_samples(reference, where)
    total = len(pixel_tensor(reference.frames, 4, where))
    frames, timestamps = sample_video(reference.frames, reference.fps, where=where)
    if len(timestamps) < TEMPORAL_PATCH:
        raise ValueError(
            f"{where}: expected more than {SAMPLE_STRIDE} frames at {FPS} fps (half a second), got {total} at "
            f"{float(reference.fps):g} fps. Use a longer clip, or an image reference."
        )
    return frames, timestamps


def _given_samples(reference: VideoReference, where: str) -> tuple[Any, tuple[float, ...]]:
    frames = pixel_tensor(reference.frames, 4, where)
    timestamps = _seconds(reference.timestamps, where)
    if len(timestamps) != len(frames):
        raise ValueError(
            f"{where}: expected one timestamp per frame, got {len(timestamps)} for {len(frames)} frames. "
            "Pass the time of each sampled frame, or none to have the frames sampled by their rate."
        )
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in timestamps):
        raise ValueError(f"{where}: expected timestamps in seconds from 0 on, got {timestamps}. Correct them.")
    if len(frames) == 1:
        # The released path refuses one sample. Hosts that sample before they ask for 5 to 12 frames' worth send it.
        logger.info("%s: one sampled frame, repeated to fill its pair.", where)
        return torch.cat([frames, frames]), timestamps * 2
    return frames, timestamps


def _seconds(timestamps: Any, where: str) -> tuple[float, ...]:
    try:
        return tuple(float(seconds) for seconds in timestamps)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: expected timestamps as a list of seconds, got {timestamps!r:.60}. Pass one number per frame."
        ) from error


def _pair_times(timestamps: Sequence[float]) -> list[float]:
    """Mean time of each pair; an odd one out is paired with itself."""
    padded = [*timestamps, timestamps[-1]] if len(timestamps) % TEMPORAL_PATCH else timestamps
    return [(a + b) / 2 for a, b in zip(padded[::2], padded[1::2], strict=True)]
