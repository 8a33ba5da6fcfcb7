"""A prompt and its references -> the sequence that the encoder reads: labels, vision blocks, the prompt.

Contract (the released presentation, no chat template): each reference in request order, numbered per modality, then
the prompt verbatim.

    image       "<Picture i>: " and one vision block; with a time of its own "<T.T seconds>" stands before the block,
                as in a video (an extension of ours: not a released form)
    audio       "<Audio j>: " alone; sound never enters the encoder
    video       "<Video k>: ", then per pair of sampled frames "<T.T seconds>" and one vision block;
                with a soundtrack "<Audio j>: " stands right before it

Text is not tokenised here; `tokens.tokenize` does that, each segment on its own.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch

from .pixels import (
    FPS,
    MERGE,
    SAMPLE_STRIDE,
    TEMPORAL_PATCH,
    Patches,
    concatenate,
    image_patches,
    pixel_tensor,
    sample_video,
    video_patches,
)

logger = logging.getLogger(__name__)

PROMPT_PART = "prompt"


@dataclass(frozen=True, eq=False)
class ImageReference:
    """Prepared RGB pixels [H, W, 3], torch or numpy, uint8 or float 0..1. Alpha is composited by the caller.
    timestamp: seconds from 0 on, None for an untimed picture."""

    pixels: Any
    timestamp: float | None = None


@dataclass(frozen=True, eq=False)
class VideoReference:
    """Prepared RGB frames [T, H, W, 3], torch or numpy, uint8 or float 0..1.

    Without `timestamps` the frames run at `fps` and are sampled here. With `timestamps` (seconds, one per frame) they
    are already sampled: paired and labelled as they are. `has_audio`: the video has a soundtrack, labelled too."""

    frames: Any
    fps: float = float(FPS)
    has_audio: bool = False
    timestamps: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AudioReference:
    """A sound of its own. Only its label is read."""


Reference = ImageReference | VideoReference | AudioReference


@dataclass(frozen=True)
class TextSegment:
    """Text tokenised on its own. `part` is what it belongs to: "Picture 1", "Video 1", "Audio 1" or "prompt"."""

    text: str
    part: str


@dataclass(frozen=True)
class VisionSegment:
    """One vision block: a start marker, `pads` pads, an end marker. `grid_hw` counts patches: pads = h * w / 4."""

    modality: Literal["image", "video"]
    pads: int
    part: str
    grid_hw: tuple[int, int]

    @property
    def tokens(self) -> int:
        return self.pads + 2


Segment = TextSegment | VisionSegment


@dataclass(frozen=True, eq=False)
class PixelInputs:
    """Patches per modality, references in request order; None where there are none."""

    image: Patches | None = None
    video: Patches | None = None


@dataclass(frozen=True)
class Part:
    """One reference as the encoder sees it. `grid_thw` counts patches (t vision blocks of h x w); None for sound.
    `vision_tokens` includes the markers of each block, not the label."""

    name: str
    grid_thw: tuple[int, int, int] | None
    vision_tokens: int


@dataclass(frozen=True, eq=False)
class Presentation:
    """Segments in reading order and the patches of their vision blocks."""

    segments: tuple[Segment, ...]
    patches: PixelInputs

    @property
    def image(self) -> Patches | None:
        return self.patches.image

    @property
    def video(self) -> Patches | None:
        return self.patches.video

    @property
    def parts(self) -> tuple[Part, ...]:
        """The references in reading order: what the node text and the memory plan count."""
        blocks: dict[str, list[VisionSegment]] = {}
        for segment in self.segments:
            found = blocks.setdefault(segment.part, [])
            if isinstance(segment, VisionSegment):
                found.append(segment)
        blocks.pop(PROMPT_PART, None)
        return tuple(_part(name, found) for name, found in blocks.items())


def present(prompt: str, references: Iterable[Reference] = ()) -> Presentation:
    """Lay out `prompt` and `references`. An empty prompt adds no segment.

    Errors (ValueError): a prompt that is no string, an unknown reference, and whatever is wrong with the pixels of
    one, named by its label."""
    return present_each([prompt], references)[0]


def present_each(prompts: Sequence[str], references: Iterable[Reference] = ()) -> list[Presentation]:
    """`present` for several prompts with the same references, whose pixels are prepared once: the presentations share
    their patches, and one pass over the weights sees them once."""
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"present: expected one string as the prompt, got {type(prompt).__name__}. Pass a str.")
    if not isinstance(references, Iterable):
        raise ValueError(
            f"present: expected a list of references, got {type(references).__name__}. Pass [reference], or ()."
        )
    builder = _Builder()
    for position, reference in enumerate(references, 1):
        builder.add(reference, position)
    pixels = PixelInputs(concatenate(builder.images), concatenate(builder.videos))
    return [
        Presentation((*builder.segments, *([TextSegment(prompt, PROMPT_PART)] if prompt else [])), pixels)
        for prompt in prompts
    ]


class _Builder:
    """Numbers the references per modality and collects their segments and patches."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.images: list[Patches] = []
        self.videos: list[Patches] = []
        self.ordinals: Counter[str] = Counter()

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

    def block(self, modality: Literal["image", "video"], part: str, patches: Patches) -> None:
        _, height, width = patches.grid_thw[0].tolist()
        self.segments.append(VisionSegment(modality, height * width // MERGE**2, part, (height, width)))

    def image(self, reference: ImageReference) -> None:
        part = self.label("Picture")
        if reference.timestamp is not None:
            self.text(_stamp(_second(reference.timestamp, _where(part))), part)
        patches = image_patches(reference.pixels, where=_where(part))
        self.images.append(patches)
        self.block("image", part, patches)

    def video(self, reference: VideoReference) -> None:
        part = self.label("Video")
        frames, timestamps = _samples(reference, _where(part))
        patches = video_patches(frames, where=_where(part))
        self.videos.append(patches)
        for seconds in _pair_times(timestamps):
            self.text(_stamp(seconds), part)
            self.block("video", part, patches)


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


def _part(name: str, blocks: list[VisionSegment]) -> Part:
    if not blocks:
        return Part(name, None, 0)
    return Part(name, (len(blocks), *blocks[0].grid_hw), sum(block.tokens for block in blocks))
