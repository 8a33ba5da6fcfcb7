"""A page that is as high as what is put on it: colours, boxes, text and pictures, drawn when it is finished.

Contract: `Page` remembers what to draw at which place; `y` is where the next thing goes. `finish` draws it.
"""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image, ImageDraw

from .presentation_picture_text import RGB, Face

WIDTH, MARGIN, GAP = 1280, 36, 14
INNER = WIDTH - 2 * MARGIN
PAPER, CARD, INK, MUTED, LINE = (250, 250, 247), (255, 255, 255), (30, 33, 36), (104, 110, 116), (222, 222, 216)
AMBER, AMBER_PAPER, RED = (122, 74, 8), (253, 243, 224), (190, 24, 24)
TITLE, VALUE, HEAD, TEXT, SMALL = Face(27), Face(21), Face(17), Face(16), Face(14)
DARK = 100  # brightness of text, at most
_PICTURES = ((35, 110, 160), (80, 154, 196), (22, 82, 126), (108, 172, 206), (44, 128, 142))
_VIDEOS = ((176, 96, 36), (206, 138, 70), (146, 74, 24))
_SOUNDS = ((98, 128, 44), (134, 160, 78), (74, 100, 30))
_PROMPT = (96, 104, 116)

Drawing = Callable[[Image.Image, ImageDraw.ImageDraw], object]


class Page:
    def __init__(self) -> None:
        self.y = MARGIN
        self._drawings: list[Drawing] = []

    def text(self, x: float, y: float, text: str, face: Face, colour: RGB = INK) -> None:
        self._drawings.append(lambda _, pen: face.draw(pen, x, y, text, colour))

    def right(self, x: float, y: float, text: str, face: Face, colour: RGB = INK) -> None:
        """Ends at `x`."""
        self.text(x - face.length(text), y, text, face, colour)

    def box(self, box: tuple[float, float, float, float], fill: RGB | None = CARD, line: RGB | None = LINE) -> None:
        self._drawings.append(lambda _, pen: pen.rounded_rectangle(box, 6, fill=fill, outline=line))

    def frame(self, box: tuple[float, float, float, float], line: RGB = LINE) -> None:
        self._drawings.append(lambda _, pen: pen.rectangle(box, outline=line))

    def bar(self, box: tuple[float, float, float, float], fill: RGB) -> None:
        self._drawings.append(lambda _, pen: pen.rectangle(box, fill=fill))

    def paste(self, picture: Image.Image, x: float, y: float) -> None:
        self._drawings.append(lambda page, _: page.paste(picture, (round(x), round(y))))

    def finish(self) -> Image.Image:
        page = Image.new("RGB", (WIDTH, round(self.y) + MARGIN - GAP), PAPER)
        pen = ImageDraw.Draw(page)
        for drawing in self._drawings:
            drawing(page, pen)
        return page


def colour_of(part: str) -> RGB:
    """Of "Picture 3" and its like: neighbours of one kind differ."""
    kind, _, number = part.partition(" ")
    shades = {"Picture": _PICTURES, "Video": _VIDEOS, "Audio": _SOUNDS}.get(kind, (_PROMPT,))
    return shades[(int(number or 1) - 1) % len(shades)]


def ink_of(part: str) -> RGB:
    """The same, dark enough for text on paper."""
    colour = colour_of(part)
    dark = min(1.0, DARK / max(1.0, 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2]))
    red, green, blue = (round(value * dark) for value in colour)
    return red, green, blue
