"""A presentation as a picture: the sequence as the model reads it, what each part costs, and what should be known.

Contract: `draw(sheet) -> PIL.Image` in RGB, WIDTH pixels wide and as high as it needs: totals, tokens of each part as
a proportional bar and a table, warnings, the references in reading order, the prompt. Text never leaves its box; a
long prompt, table or list is cut, and says so. `seen_pictures` are thumbnails from the very patches that are encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image

from .pixels import MERGE, PATCH, TEMPORAL_PATCH, Patches
from .presentation_parts import PROMPT_PART, Presentation, VisionSegment
from .presentation_picture_flow import draw_references
from .presentation_picture_page import (
    AMBER,
    AMBER_PAPER,
    CARD,
    GAP,
    HEAD,
    INK,
    INNER,
    LINE,
    MARGIN,
    MUTED,
    RED,
    SMALL,
    TEXT,
    TITLE,
    VALUE,
    WIDTH,
    Page,
    ink_of,
)
from .presentation_picture_table import draw_stages, draw_table, draw_token_bar
from .presentation_picture_text import HINT, RGB, legible
from .prompt_notes import prompt_of
from .tokens import MAX_TOKENS, TokenSequence

PROMPT_LINES, PROMPT_LOOKED_AT = 18, 6000
WARNINGS = 10
PAD = 12
_MARKED = re.compile(r"<(?:Picture|Video|Audio) [0-9]+>|</?d>|<\|[a-z_]+\|>")
_MARKER = (134, 68, 140)


@dataclass(frozen=True, eq=False)
class Sheet:
    """thumbs: one a vision block in reading order, of any size; a block without one is an empty frame. tiles: (what,
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
    page = Page()
    _head(page, sheet)
    _tiles(page, sheet)
    draw_token_bar(page, sheet.sequence)
    draw_table(page, sheet.presentation, sheet.sequence, sheet.stages, sheet.notes)
    draw_stages(page, sheet.stages)
    _warnings(page, sheet.warnings)
    if sheet.presentation.parts:
        _heading(page, "references, in reading order")
        draw_references(page, sheet.presentation.segments, sheet.thumbs)
    _prompt(page, sheet)
    return page.finish()


def _head(page: Page, sheet: Sheet) -> None:
    page.text(MARGIN, page.y - 6, TITLE.cut(legible(sheet.title)[0], INNER), TITLE)
    page.y += TITLE.line
    for line in (sheet.subtitle, sheet.remark):
        if line:
            page.text(MARGIN, page.y - 4, TEXT.cut(legible(line)[0], INNER), TEXT, MUTED)
            page.y += TEXT.line
    page.y += 6


def _tiles(page: Page, sheet: Sheet) -> None:
    total = len(sheet.sequence)
    share = f"{total:,}, {_percent(total / MAX_TOKENS)} of {MAX_TOKENS:,}"
    tiles = [("tokens in all, of the context", share), *sheet.tiles]
    width = (INNER - GAP * (len(tiles) - 1)) / len(tiles)
    values = [VALUE.wrap(legible(value)[0], width - 2 * PAD, 3) for _, value in tiles]
    high = 2 * PAD + SMALL.line + max(map(len, values)) * VALUE.line
    for i, ((what, _), lines) in enumerate(zip(tiles, values, strict=True)):
        x = MARGIN + i * (width + GAP)
        page.box((x, page.y, x + width, page.y + high))
        page.text(x + PAD, page.y + PAD - 2, SMALL.cut(what, width - 2 * PAD), SMALL, MUTED)
        for n, line in enumerate(lines):
            page.text(x + PAD, page.y + PAD + SMALL.line + n * VALUE.line, line, VALUE)
    page.y += high + GAP


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %" if part >= 0.001 or part == 0 else "under 0.1 %"


def _warnings(page: Page, warnings: Sequence[str]) -> None:
    if not warnings:
        return
    listed = list(warnings[:WARNINGS])
    listed += [f"and {len(warnings) - WARNINGS} more"] if len(warnings) > WARNINGS else []
    lines = [HEAD.wrap(legible(line)[0], INNER - 2 * PAD - 18, 4) for line in listed]
    high = 2 * PAD + sum(map(len, lines)) * HEAD.line
    page.box((MARGIN, page.y, WIDTH - MARGIN, page.y + high), AMBER_PAPER, AMBER_PAPER)
    y = page.y + PAD - 2
    for each in lines:
        page.text(MARGIN + PAD, y, "!", HEAD, RED)
        for line in each:
            page.text(MARGIN + PAD + 18, y, line, HEAD, AMBER)
            y += HEAD.line
    page.y += high + GAP


def _heading(page: Page, text: str) -> None:
    page.text(MARGIN, page.y - 2, text, TEXT, MUTED)
    page.y += TEXT.line + 4


def _prompt(page: Page, sheet: Sheet) -> None:
    prompt = prompt_of(sheet.presentation)
    tokens = sheet.sequence.counts[PROMPT_PART]
    _heading(page, f"prompt: {tokens:,} token{'' if tokens == 1 else 's'}, {len(prompt):,} characters")
    text, lost = legible(prompt[:PROMPT_LOOKED_AT])
    lines = HEAD.wrap(text, INNER - 2 * PAD, PROMPT_LINES) if prompt else []
    below = _below(prompt, text, lines, lost)
    high = 2 * PAD + max(1, len(lines)) * HEAD.line + len(below) * TEXT.line
    page.box((MARGIN, page.y, WIDTH - MARGIN, page.y + high), CARD, LINE)
    y, given = page.y + PAD - 2, {part.name for part in sheet.presentation.parts}
    for line in lines:
        _marked(page, MARGIN + PAD, y, line, given)
        y += HEAD.line
    if not prompt:
        page.text(MARGIN + PAD, y, "empty", HEAD, MUTED)
    for line in below:
        page.text(MARGIN + PAD, y + 2, TEXT.cut(line, INNER - 2 * PAD), TEXT, AMBER)
        y += TEXT.line
    page.y += high + GAP


def _below(prompt: str, text: str, lines: Sequence[str], lost: int) -> list[str]:
    """What is not on the page."""
    cut = len(prompt) - PROMPT_LOOKED_AT if len(prompt) > PROMPT_LOOKED_AT else 0
    shown = sum(len(re.sub(r"\s", "", line)) for line in lines)
    cut += len(re.sub(r"\s", "", text)) - shown
    said = [f"... {cut:,} more characters"] if cut > 0 else []
    missing = f"No font here has {lost:,} of these characters; the encoder reads them all the same. {HINT}"
    return [*said, *([missing] if lost else [])]


def _marked(page: Page, x: float, y: float, line: str, given: set[str]) -> None:
    """Names of references in their colours, unknown ones in red, H3's own markers apart."""
    start = 0
    for match in _MARKED.finditer(line):
        for text, colour in ((line[start : match.start()], INK), (match.group(), _colour(match.group(), given))):
            page.text(x, y, text, HEAD, colour)
            x += HEAD.length(text)
        start = match.end()
    page.text(x, y, line[start:], HEAD, INK)


def _colour(marked: str, given: set[str]) -> RGB:
    name = marked[1:-1]
    if " " not in name:
        return _MARKER
    return ink_of(name) if name in given else RED


def seen_pictures(presentation: Presentation) -> list[Image.Image]:
    """One RGB picture a vision block, in reading order, from the patches that the tower sees (first frame of a pair).
    For presentations that have patches."""
    of = {m: _pictures(p) for m, p in (("image", presentation.image), ("video", presentation.video)) if p is not None}
    return [next(of[s.modality]) for s in presentation.segments if isinstance(s, VisionSegment)]


def _pictures(patches: Patches) -> Iterator[Image.Image]:
    """Patches [N, 1536] with grids -> one a temporal step."""
    start = 0
    for t, h, w in patches.grid_thw.tolist():
        for _ in range(t):
            block = patches.pixel_values[start : start + h * w]
            block = block.view(h // MERGE, w // MERGE, MERGE, MERGE, 3, TEMPORAL_PATCH, PATCH, PATCH)[..., 0, :, :]
            pixels = block.permute(0, 2, 5, 1, 3, 6, 4).reshape(h * PATCH, w * PATCH, 3)
            yield Image.fromarray(((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy())
            start += h * w
