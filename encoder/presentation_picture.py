"""A presentation as a picture: the sequence as the model reads it.

Contract: `draw(sheet) -> PIL.Image` in RGB, WIDTH pixels wide and as high as it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageDraw

from .checkpoint.picture import font
from .presentation import Presentation
from .tokens import TokenSequence

WIDTH = 1280


@dataclass(frozen=True, eq=False)
class Sheet:
    """thumbs: one a vision block in reading order, any size; a block without one is an empty frame. tiles: (what,
    value) beside the tokens; stages: seconds of each; notes: what a part is, by its name; remark: below the title."""

    title: str
    presentation: Presentation
    sequence: TokenSequence
    subtitle: str = ""
    thumbs: Sequence[Image.Image] = ()
    tiles: Sequence[tuple[str, str]] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    remark: str = ""


def draw(sheet: Sheet) -> Image.Image:
    picture = Image.new("RGB", (WIDTH, 200), (250, 250, 247))
    ImageDraw.Draw(picture).text((20, 20), sheet.title, (30, 33, 36), font(28))
    return picture
