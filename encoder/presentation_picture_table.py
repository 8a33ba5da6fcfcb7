"""Tokens and time of a presentation on a page: the bar, the table of its parts, the measured stages.

Contract: time is measured of stages alone; a part's own is its share of them (of vision by patches, of the decoder by
tokens) and is marked as a share. Parts beyond ROWS stand in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .presentation_parts import Presentation
from .presentation_picture_page import GAP, INNER, LINE, MARGIN, MUTED, SMALL, TEXT, WIDTH, Page, colour_of
from .presentation_picture_text import legible
from .progress import DECODER, LOAD, VISION
from .tokens import TokenSequence

ROWS = 20
BAR = 24
NAME, TOKENS, SHARE, TIME = MARGIN + 22, MARGIN + 210, MARGIN + 290, MARGIN + 400  # left; right edges of the others
STAGES = {LOAD: (150, 150, 144), VISION: (44, 128, 142), DECODER: (92, 84, 150)}
OTHER = (180, 150, 110)


def draw_token_bar(page: Page, sequence: TokenSequence) -> None:
    parts = [(count, colour_of(part)) for part, count in sequence.counts.items() if count]
    _bar(page, parts, BAR)
    page.y += BAR + 8


def _bar(page: Page, parts: Sequence[tuple[float, tuple[int, int, int]]], high: int) -> None:
    """Lengths are proportional; a part too small to be seen is one pixel."""
    total, x = sum(amount for amount, _ in parts) or 1, float(MARGIN)
    for amount, colour in parts:
        width = INNER * amount / total
        page.bar((round(x), page.y, max(round(x), round(x + width) - 2), page.y + high), colour)
        x += width


def draw_table(
    page: Page,
    presentation: Presentation,
    sequence: TokenSequence,
    stages: Mapping[str, float],
    notes: Mapping[str, str],
) -> None:
    shares = _shares(presentation, sequence, stages)
    left = (TIME if shares else SHARE) + 28
    heads = ((TOKENS, "tokens"), (SHARE, "of all"), *([(TIME, "time, a share")] if shares else []))
    page.text(NAME, page.y, "part", SMALL, MUTED)
    for right, text in heads:
        page.right(right, page.y, text, SMALL, MUTED)
    if notes:
        page.text(left, page.y, "what it is", SMALL, MUTED)
    page.y += SMALL.line + 4
    counts = list(sequence.counts.items())
    shown = counts if len(counts) <= ROWS else [*counts[: ROWS - 2], counts[-1]]
    for part, count in shown:
        _row(page, part, count, len(sequence), shares.get(part), notes.get(part, ""), left)
    if len(shown) < len(counts):
        rest = sum(count for _, count in counts) - sum(count for _, count in shown)
        page.text(NAME, page.y, f"and {len(counts) - len(shown)} more parts, {rest:,} tokens", TEXT, MUTED)
        page.y += TEXT.line
    page.y += GAP


def _row(page: Page, part: str, count: int, total: int, seconds: float | None, note: str, left: int) -> None:
    page.bar((MARGIN, page.y + 5, MARGIN + 12, page.y + 17), colour_of(part))
    page.text(NAME, page.y, part, TEXT)
    page.right(TOKENS, page.y, f"{count:,}", TEXT)
    page.right(SHARE, page.y, f"{100 * count / total:.1f} %", TEXT, MUTED)
    if seconds is not None:
        page.right(TIME, page.y, f"~ {seconds:.2f} s", TEXT, MUTED)
    lines = TEXT.wrap(legible(note)[0], WIDTH - MARGIN - left, 3) if note else [""]
    for i, line in enumerate(lines):
        page.text(left, page.y + i * TEXT.line, line, TEXT, MUTED)
    page.y += len(lines) * TEXT.line + 3
    page.bar((MARGIN, page.y - 2, WIDTH - MARGIN, page.y - 2), LINE)


def _shares(presentation: Presentation, sequence: TokenSequence, stages: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part; none where no stage that parts have a share of was measured."""
    if not (stages.get(VISION) or stages.get(DECODER)):
        return {}
    patches = {p.name: p.grid_thw[0] * p.grid_thw[1] * p.grid_thw[2] for p in presentation.parts if p.grid_thw}
    seen, read = sum(patches.values()) or 1, len(sequence)
    return {
        part: stages.get(VISION, 0) * patches.get(part, 0) / seen + stages.get(DECODER, 0) * count / read
        for part, count in sequence.counts.items()
    }


def draw_stages(page: Page, stages: Mapping[str, float]) -> None:
    """What was measured, one after another."""
    took = {stage: seconds for stage, seconds in stages.items() if seconds > 0}
    if not took:
        return
    page.text(MARGIN, page.y - 2, "time, as measured", TEXT, MUTED)
    page.y += TEXT.line + 2
    _bar(page, [(seconds, STAGES.get(stage, OTHER)) for stage, seconds in took.items()], 12)
    page.y += 18
    x = MARGIN
    for stage, seconds in took.items():
        text = f"{stage} {seconds:.2f} s"
        page.bar((x, page.y + 4, x + 12, page.y + 16), STAGES.get(stage, OTHER))
        page.text(x + 20, page.y, text, TEXT)
        x += 20 + round(TEXT.length(text)) + 30
    page.y += TEXT.line + GAP
