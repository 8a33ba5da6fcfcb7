"""Colours as people type them: names and hex values of CSS."""

from __future__ import annotations

from PIL import ImageColor

RGB = tuple[int, int, int]


def rgb(text: str, where: str) -> RGB:
    """ "white", "#808080", "rgb(0, 128, 0)" -> (R, G, B), 0..255; a fourth value is dropped. Raises ValueError."""
    try:
        return ImageColor.getrgb(text.strip())[:3]
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{where}: expected a colour such as white, grey or #1a2b3c, got {text!r:.60}. Correct it."
        ) from error
