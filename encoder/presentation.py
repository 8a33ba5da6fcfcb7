"""A prompt and its references -> the sequence that the encoder reads: labels, vision blocks, the prompt.

Contract (the released presentation, no chat template): each reference in request order, numbered per modality, then
the prompt verbatim.

    image       "<Picture i>: " and one vision block; with a time of its own "<T.T seconds>" stands before the block,
                as in a video (an extension of ours: not a released form)
    audio       "<Audio j>: " alone; sound never enters the encoder
    video       "<Video k>: ", then per pair of sampled frames "<T.T seconds>" and one vision block;
                with a soundtrack "<Audio j>: " stands right before it

Numbers, labels and times are presentation_layout.py's, which gives the same segments from sizes alone. Text is not
tokenised here; `tokens.tokenize` does that, each segment on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .pixels import Patches, concatenate, image_patches, video_patches
from .presentation_layout import Grid, Layout
from .presentation_parts import (
    PROMPT_PART,
    AudioReference,
    ImageReference,
    Part,
    PixelInputs,
    Presentation,
    Reference,
    Segment,
    TextSegment,
    VideoReference,
    VisionSegment,
)

__all__ = [
    "PROMPT_PART",
    "AudioReference",
    "ImageReference",
    "Part",
    "PixelInputs",
    "Presentation",
    "Reference",
    "Segment",
    "TextSegment",
    "VideoReference",
    "VisionSegment",
    "present",
    "present_each",
]


def present(prompt: str, references: Iterable[Reference] = ()) -> Presentation:
    """Lay out `prompt` and `references`. An empty prompt adds no segment.

    Errors (ValueError): a prompt that is no string, an unknown reference, and whatever is wrong with the pixels of
    one, named by its label."""
    return present_each([prompt], references)[0]


def present_each(prompts: Sequence[str], references: Iterable[Reference] = ()) -> list[Presentation]:
    """`present` for several prompts with the same references, whose pixels are prepared once: the presentations share
    their patches, and one pass over the weights sees them once."""
    builder = _Builder()
    builder.add_all(prompts, references)
    return builder.presentations(prompts, PixelInputs(concatenate(builder.images), concatenate(builder.videos)))


class _Builder(Layout):
    """Keeps the patches of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[Patches] = []
        self.videos: list[Patches] = []

    def see_image(self, pixels: Any, where: str) -> Grid:
        return _kept(self.images, image_patches(pixels, where=where))

    def see_video(self, frames: Any, where: str) -> Grid:
        return _kept(self.videos, video_patches(frames, where=where))


def _kept(found: list[Patches], patches: Patches) -> Grid:
    found.append(patches)
    return tuple(patches.grid_thw[0].tolist())
