"""A checkpoint's report as a picture: a table, problems in red and first.

Contract: `draw(report) -> PIL.Image` in RGB, WIDTH pixels wide and as high as its text; long words are broken, nothing
is cut off.
"""

from __future__ import annotations

from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from ..regular import is_folder
from .report import CheckpointReport
from .summary import Row, rows

WIDTH, MARGIN, LABEL, PADDING = 1200, 36, 190, 10
SIZE, TITLE_SIZE, SPACING = 22, 28, 1.35
PAPER, INK, MUTED, LINE = (250, 250, 247), (30, 33, 36), (110, 116, 122), (222, 222, 216)
COLOURS = {"good": (24, 120, 60), "problem": (190, 24, 24), "todo": (30, 33, 36), "note": (150, 95, 10), "plain": INK}
SHADES = {"problem": (252, 232, 230), "todo": (253, 243, 224), "good": (230, 244, 234)}


def draw(report: CheckpointReport) -> Image.Image:
    """The rows of the report under its file's name."""
    title = wrapped(_title(report), font(TITLE_SIZE), WIDTH - 2 * MARGIN)
    table = [(row, wrapped(row.text, font(SIZE), WIDTH - 2 * MARGIN - LABEL)) for row in rows(report)]
    heights = [len(lines) * _line(SIZE) + 2 * PADDING for _, lines in table]
    top = MARGIN + len(title) * _line(TITLE_SIZE) + PADDING
    picture = Image.new("RGB", (WIDTH, top + sum(heights) + MARGIN), PAPER)
    pen = ImageDraw.Draw(picture)
    _write(pen, MARGIN, MARGIN, title, TITLE_SIZE, INK)
    for (row, lines), height in zip(table, heights, strict=True):
        _row(pen, top, height, row, lines)
        top += height
    return picture


def _title(report: CheckpointReport) -> str:
    """The file's name, or the last two folders: every released folder is called text_encoder."""
    parts = report.path.parts[-2:] if is_folder(report.path) else report.path.parts[-1:]
    return "/".join(parts) or str(report.path)


def _row(pen: ImageDraw.ImageDraw, top: int, height: int, row: Row, lines: list[str]) -> None:
    box = (MARGIN - PADDING, top, WIDTH - MARGIN + PADDING, top + height)
    pen.rectangle(box, fill=SHADES.get(row.tone, PAPER))
    pen.line((box[0], top + height - 1, box[2], top + height - 1), fill=LINE)
    colour = COLOURS[row.tone]
    _write(pen, MARGIN, top + PADDING, [row.label], SIZE, MUTED if row.tone == "plain" else colour)
    _write(pen, MARGIN + LABEL, top + PADDING, lines, SIZE, colour)


def _write(pen: ImageDraw.ImageDraw, x: int, y: int, lines: list[str], size: int, colour: tuple[int, ...]) -> None:
    for i, line in enumerate(lines):
        pen.text((x, y + i * _line(size)), line, colour, font(size))


def _line(size: int) -> int:
    return round(size * SPACING)


def wrapped(text: str, face: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Lines that fit into `width` pixels; a word longer than a line is broken."""
    lines, line = [], ""
    for word in text.split():
        if line and face.getlength(f"{line} {word}") > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
        while face.getlength(line) > width:
            cut = _fitting(line, face, width)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line or not lines else lines


def _fitting(line: str, face: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> int:
    """How many characters of `line` fit, at least one."""
    low, high = 1, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if face.getlength(line[:middle]) <= width else (low, middle - 1)
    return low


@lru_cache(maxsize=8)
def font(size: int):
    """Pillow's own font: the same on every system."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow before 10.1, or built without FreeType: a small fixed font
        return ImageFont.load_default()
