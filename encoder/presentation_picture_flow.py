"""The references of a presentation on a page, in reading order: labels, timestamps, a thumbnail of each vision block.

Contract: `draw_references(page, segments, thumbs)`. All thumbnails share one scale, so that their sizes compare as
those at which the blocks are seen; the more blocks, the smaller. A part with very many blocks shows its first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from PIL import Image

from .pixels import PATCH
from .presentation_parts import PROMPT_PART, Segment, TextSegment, VisionSegment
from .presentation_picture_page import GAP, INNER, MARGIN, MUTED, SMALL, TEXT, WIDTH, Page, colour_of, ink_of
from .presentation_picture_text import RGB

PAD = 10  # inside a card
MOST_BLOCKS = 48  # shown of one part
WIDTHS = ((4, 280), (12, 210), (40, 150))  # of the widest thumbnail, by how many blocks there are at most
NARROWEST = 108
TALLEST, LARGEST_SCALE = 200, 0.5
LEAST = 96  # of a card, for its captions
EMPTY = (236, 236, 231)


@dataclass(frozen=True)
class _Cell:
    """A block: its time as it is read, its thumbnail, its size on the page."""

    block: VisionSegment
    stamp: str
    thumb: Image.Image | None
    width: int
    height: int


def draw_references(page: Page, segments: Sequence[Segment], thumbs: Sequence[Image.Image]) -> None:
    """The segments of all parts but the prompt, from `page.y` on."""
    blocks = [segment for segment in segments if isinstance(segment, VisionSegment)]
    scale, given = _scale(blocks), iter(thumbs)
    row = _Row(page)
    for part, own in groupby((s for s in segments if s.part != PROMPT_PART), lambda segment: segment.part):
        own = list(own)
        row.card(part, own[0].text.strip(), list(_cells(own[1:], given, scale)))
    row.end()


def _scale(blocks: Sequence[VisionSegment]) -> float:
    if not blocks:
        return 1.0
    widest = next((width for count, width in WIDTHS if len(blocks) <= count), NARROWEST)
    by_width = widest / max(block.grid_hw[1] * PATCH for block in blocks)
    by_height = TALLEST / max(block.grid_hw[0] * PATCH for block in blocks)
    return min(by_width, by_height, LARGEST_SCALE)


def _cells(segments: Sequence[Segment], thumbs: Iterator[Image.Image], scale: float) -> Iterator[_Cell]:
    stamp = ""
    for segment in segments:
        if isinstance(segment, TextSegment):
            stamp = segment.text
            continue
        height, width = (max(3, round(side * PATCH * scale)) for side in segment.grid_hw)
        thumb = next(thumbs, None)
        fitted = None if thumb is None else thumb.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        yield _Cell(segment, stamp, fitted, width, height)
        stamp = ""


class _Row:
    """Cards beside each other while they fit."""

    def __init__(self, page: Page):
        self.page, self.x, self.height = page, MARGIN, 0

    def end(self) -> None:
        self.page.y += self.height + GAP if self.height else 0
        self.x, self.height = MARGIN, 0

    def card(self, part: str, label: str, cells: list[_Cell]) -> None:
        more, cells = len(cells) - MOST_BLOCKS, cells[:MOST_BLOCKS]
        above = (SMALL.line + 2) if any(cell.stamp for cell in cells) else 0
        across, down, cell_width, cell_height = _raster(cells, above)
        wide = max(TEXT.length(label), SMALL.length(_caption(cells, more)), across * (cell_width + PAD) - PAD)
        wide = max(LEAST, round(wide)) + 2 * PAD
        high = 2 * PAD + TEXT.line + 4 + down * (cell_height + PAD) + SMALL.line - (0 if cells else 4)
        if self.x + wide > WIDTH - MARGIN and self.x > MARGIN:
            self.end()
        x, y = self.x, self.page.y
        self.page.box((x, y, x + wide, y + high))
        self.page.bar((x, y + 6, x + 3, y + high - 6), colour_of(part))
        self.page.text(x + PAD, y + PAD - 2, label, TEXT, ink_of(part))
        for i, cell in enumerate(cells):
            column, line = i % across, i // across
            left, top = x + PAD + column * (cell_width + PAD), y + PAD + TEXT.line + 4 + line * (cell_height + PAD)
            self._cell(cell, left, top, above, ink_of(part))
        self.page.text(x + PAD, y + high - PAD - SMALL.line + 2, _caption(cells, more), SMALL, MUTED)
        self.x, self.height = x + wide + GAP, max(self.height, high)

    def _cell(self, cell: _Cell, x: float, y: float, above: int, colour: RGB) -> None:
        if cell.stamp:
            self.page.text(x, y, cell.stamp, SMALL, colour)
        top = y + above
        if cell.thumb is None:
            self.page.bar((x, top, x + cell.width - 1, top + cell.height - 1), EMPTY)
        else:
            self.page.paste(cell.thumb, x, top)
        self.page.frame((x - 1, top - 1, x + cell.width, top + cell.height))


def _raster(cells: Sequence[_Cell], above: int) -> tuple[int, int, int, int]:
    """Cells beside each other and below, width and height of each."""
    if not cells:
        return 1, 0, 0, 0
    stamps = max(SMALL.length(cell.stamp) for cell in cells)
    width = max(round(stamps), *(cell.width for cell in cells))
    across = max(1, min(len(cells), (INNER - 2 * PAD + PAD) // (width + PAD)))
    return across, -(-len(cells) // across), width, above + max(cell.height for cell in cells)


def _caption(cells: Sequence[_Cell], more: int) -> str:
    if not cells:
        return "the label alone: no sound is read"
    (height, width), pads = cells[0].block.grid_hw, cells[0].block.pads
    size = f"{width * PATCH} x {height * PATCH}"
    if len(cells) == 1:
        return f"{size}: {pads:,} + 2 tokens"
    first = f"; the first {len(cells)} are shown" if more > 0 else ""
    return f"{len(cells) + max(0, more)} blocks of {size}: {pads:,} + 2 tokens each{first}"
