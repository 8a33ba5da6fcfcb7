"""Colours as people type them: the names and notations of CSS, as PIL reads them."""

from __future__ import annotations

from PIL import ImageColor

RGB = tuple[int, int, int]


def rgb(text: str, where: str) -> RGB:
    """ "white", "#808080", "rgb(0, 128, 0)" -> (R, G, B), 0..255; a fourth value, alpha, is dropped. Raises ValueError
    naming `where`."""
    try:
        colour = ImageColor.getrgb(text.strip())[:3]
    except (ValueError, AttributeError) as error:
        raise _no_colour(text, where) from error
    if not all(0 <= value <= 255 for value in colour):  # PIL lets rgb(300, 0, 0) and hsv(0, 200%, 50%) pass
        raise _no_colour(text, where)
    return colour


def _no_colour(text: object, where: str) -> ValueError:
    return ValueError(
        f"{where}: expected a colour such as white, grey or #1a2b3c, got {text!r:.60}. "
        "Type a name, #rrggbb, or rgb(0, 128, 0)."
    )
