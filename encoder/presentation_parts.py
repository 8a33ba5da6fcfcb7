"""What a presentation is made of: references as they are given, segments as they are read.

Contract: frozen values, made by `presentation.present` and `presentation_layout.lay_out`. Pixels are prepared RGB,
channels last; a vision block is known by its grid alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .pixels import FPS, Patches

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


def _part(name: str, blocks: list[VisionSegment]) -> Part:
    if not blocks:
        return Part(name, None, 0)
    return Part(name, (len(blocks), *blocks[0].grid_hw), sum(block.tokens for block in blocks))
