"""Text of any script on a picture: Pillow's own font, and for characters that it lacks a font of the system.

Contract: `Face(size)` measures, wraps and draws; `legible(text)` is what can be drawn of a text, with `[12 characters]`
for each stretch that no font here has, and how many those are together. Nothing is drawn as an empty box. Fonts of the
system are looked for by name, once, when a character asks for one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any

from PIL import ImageDraw, ImageFont

from .checkpoint.picture import font

RGB = tuple[int, int, int]
SPACING = 1.36
# Chinese, Japanese and Korean first, then fonts of many scripts; Linux, Windows, macOS in turn.
NAMES = (
    "NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "NotoSansSC-Regular.otf", "SourceHanSansSC-Regular.otf",
    "wqy-microhei.ttc", "wqy-zenhei.ttc", "DroidSansFallbackFull.ttf", "DroidSansFallback.ttf",
    "msyh.ttc", "simsun.ttc", "meiryo.ttc", "YuGothR.ttc", "malgun.ttf",
    "PingFang.ttc", "Hiragino Sans GB.ttc", "STHeiti Light.ttc", "AppleSDGothicNeo.ttc", "Arial Unicode.ttf",
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "FreeSans.ttf", "NotoSansArabic-Regular.ttf",
    "NotoSansHebrew-Regular.ttf", "NotoSansDevanagari-Regular.ttf", "NotoSansThai-Regular.ttf",
    "segoeui.ttf", "Nirmala.ttf", "LeelawUI.ttf", "seguisym.ttf", "seguiemj.ttf",
    "Geneva.ttf", "Apple Symbols.ttf", "NotoSansSymbols2-Regular.ttf", "Symbola.ttf",
)  # fmt: skip
HINT = "Install a font for it, such as Noto Sans CJK, to see it here."
_NOWHERE = "\U0010ffff"  # a character that no font has
_MENTION = r"<(?:Picture|Video|Audio) [0-9]+>"
# what stays together on a line: a mention or marker, blanks, one character of a script without blanks, a word
_BLANKLESS = r"\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_PIECE = re.compile(rf"{_MENTION}|</?d>|<\|[a-z_]+\|>|\s+|[{_BLANKLESS}]|[^\s{_BLANKLESS}<]+|<")


class Face:
    """One size of every font there is."""

    def __init__(self, size: int):
        self.size, self.line = size, round(size * SPACING)

    def length(self, text: str) -> float:
        return sum(_sized(which, self.size).getlength(run) for which, run in _runs(text))

    def draw(self, pen: ImageDraw.ImageDraw, x: float, y: float, text: str, colour: RGB) -> float:
        """Returns where the text ends."""
        base = y + self.size  # characters of all fonts stand on one line
        for which, run in _runs(text):
            face = _sized(which, self.size)
            if isinstance(face, ImageFont.FreeTypeFont):
                pen.text((x, base), run, colour, face, anchor="ls")
            else:
                pen.text((x, y), run, colour, face)
            x += face.getlength(run)
        return x

    def wrap(self, text: str, width: float, most: int | None = None) -> list[str]:
        """Lines within `width` pixels, at most that many; what is longer than a line is broken."""
        lines: list[str] = []
        for paragraph in text.split("\n"):
            lines += self._wrapped(paragraph, width, None if most is None else most - len(lines))
            if most is not None and len(lines) >= most:
                return lines[:most]
        return lines

    def _wrapped(self, paragraph: str, width: float, most: int | None) -> list[str]:
        lines, line, used = [], "", 0.0
        for piece in self._pieces(paragraph, width):
            wide = self.length(piece)
            if line and used + wide > width and not piece.isspace():
                lines.append(line.rstrip())
                line, used = "", 0.0
                if most is not None and len(lines) >= most:
                    return lines
            if line or not piece.isspace() or not lines:
                line, used = line + piece, used + wide
        return [*lines, line.rstrip()]

    def _pieces(self, paragraph: str, width: float) -> Iterator[str]:
        for piece in _PIECE.findall(paragraph):
            while len(piece) > 1 and self.length(piece) > width:
                cut = self._fitting(piece, width)
                yield piece[:cut]
                piece = piece[cut:]
            yield piece

    def _fitting(self, piece: str, width: float) -> int:
        """How many characters of `piece` fit, at least one."""
        low, high = 1, len(piece)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.length(piece[:middle]) <= width else (low, middle - 1)
        return low

    def cut(self, text: str, width: float) -> str:
        """On one line; what does not fit is "..."."""
        if self.length(text) <= width:
            return text
        room = width - self.length("...")
        return text[: self._fitting(text, room)].rstrip() + "..." if room > 0 else ""


def legible(text: str) -> tuple[str, int]:
    """What can be drawn of `text`, and how many characters cannot."""
    found, lost = [], 0
    for drawn, run in groupby(_plain(text), lambda c: c == "\n" or _font_of(c) is not None):
        stretch = "".join(run)
        if not drawn:
            lost += len(stretch)
            stretch = f"[{len(stretch)} character{'' if len(stretch) == 1 else 's'}]"
        found.append(stretch)
    return "".join(found), lost


def _plain(text: str) -> str:
    """Line ends as one character, tabs as blanks; other control and invisible format characters are left out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return "".join(c for c in text if c == "\n" or c.isascii() or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """(font, text) of each stretch that one font draws; marks stay with what they are on."""
    last = ""

    def which(character: str) -> str:
        nonlocal last
        joined = character == " " or unicodedata.combining(character)
        if not (joined and last is not None and last and _covers(last, character)):
            last = _font_of(character) or ""
        return last

    for name, run in groupby(text, which):
        yield name, "".join(run)


@lru_cache(maxsize=4096)
def _font_of(character: str) -> str | None:
    """ "" for Pillow's own, a name of NAMES, None for none."""
    if character.isspace() or _covers("", character):
        return ""
    return next((name for name in NAMES if _sized(name, 20) is not None and _covers(name, character)), None)


@lru_cache(maxsize=16384)
def _covers(name: str, character: str) -> bool:
    """Whether a font draws this character, and not what stands for one that it lacks."""
    face = _sized(name, 20)
    if not isinstance(face, ImageFont.FreeTypeFont):
        return character.isascii()  # a fixed font, where Pillow has no FreeType
    shape = _shape(face, character)
    return any(shape[1]) and shape != _shape(face, _NOWHERE)


def _shape(face: ImageFont.FreeTypeFont, character: str) -> tuple[Any, ...]:
    mask = face.getmask(character)
    return mask.size, bytes(mask)


@lru_cache(maxsize=256)
def _sized(name: str, size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont | None:
    if not name:
        return font(size)
    try:
        return ImageFont.truetype(name, size)
    except (OSError, ImportError):
        return None
