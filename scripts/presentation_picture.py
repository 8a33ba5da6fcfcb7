"""A picture of a presentation: the sequence as the model reads it, with every picture as it is seen.

Contract: `draw_presentation(title, presentation, sequence, path)` writes a PNG. Thumbnails are rebuilt from the
patches that go into the vision tower, so that what is shown is what is encoded.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

WIDTH, MARGIN, GAP, THUMB = 1400, 28, 14, 168
PAPER, INK, MUTED, PROMPT_COLOUR = (250, 250, 247), (30, 33, 36), (110, 116, 122), (70, 78, 88)
COLOURS = {"Picture": (35, 110, 160), "Video": (150, 80, 30), "Audio": (90, 120, 40)}


def seen_pictures(patches, merge: int = 2, patch: int = 16) -> list[Image.Image]:
    """Patches [N, 1536] with grids -> one RGB picture per temporal step, as the tower sees it (first frame of a
    pair)."""
    pictures, start = [], 0
    for t, h, w in patches.grid_thw.tolist():
        for _ in range(t):
            block = patches.pixel_values[start : start + h * w]
            block = block.view(h // merge, w // merge, merge, merge, 3, 2, patch, patch)[:, :, :, :, :, 0]
            pixels = block.permute(0, 2, 5, 1, 3, 6, 4).reshape(h * patch, w * patch, 3)
            pictures.append(Image.fromarray(((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()))
            start += h * w
    return pictures


def draw_presentation(title: str, presentation, sequence, path: Path) -> None:
    """Write the picture of one request to `path` (PNG)."""
    page = _Page(title, len(sequence), sequence.counts)
    pictures = {m: iter(seen_pictures(p)) for m in ("image", "video") if (p := getattr(presentation, m)) is not None}
    for segment in presentation.segments:
        if hasattr(segment, "pads"):
            page.picture(next(pictures[segment.modality]), segment.pads, segment.part)
        else:
            page.text(segment.text, segment.part)
    page.save(path)


class _Page:
    def __init__(self, title: str, tokens: int, counts: dict[str, int]):
        self.canvas = Image.new("RGB", (WIDTH, 4000), PAPER)
        self.draw = ImageDraw.Draw(self.canvas)
        self.x, self.y, self.row_height = MARGIN, MARGIN, 0
        self.draw.text((MARGIN, self.y), title, INK, _font(28))
        self.y += 44
        self._bar(tokens, counts)

    def _bar(self, tokens: int, counts: dict[str, int]) -> None:
        left, full = MARGIN, WIDTH - 2 * MARGIN
        for part, count in counts.items():
            width = full * count / tokens
            self.draw.rectangle((left, self.y, left + width - 2, self.y + 22), fill=_colour(part))
            left += width
        self.y += 30
        listed = f"{tokens} tokens:  " + ",  ".join(f"{part} {count}" for part, count in counts.items())
        for line in _wrapped(listed, _font(18), full):
            self.draw.text((MARGIN, self.y), line, MUTED, _font(18))
            self.y += 26
        self.y += GAP

    def text(self, text: str, part: str) -> None:
        if part != "prompt":
            self._place(int(_font(20).getlength(text.strip())) + 20, 34)
            box = (self.x, self.y, self.x + self.width, self.y + 34)
            self.draw.rounded_rectangle(box, 6, outline=_colour(part), width=2)
            self.draw.text((self.x + 10, self.y + 5), text.strip(), _colour(part), _font(20))
            self.x += self.width + GAP
            return
        self._line_feed()
        for line in _wrapped(text, _font(22), WIDTH - 2 * MARGIN):
            self.draw.text((MARGIN, self.y), line, PROMPT_COLOUR, _font(22))
            self.y += 31

    def picture(self, picture: Image.Image, tokens: int, part: str) -> None:
        caption = f"{picture.width} x {picture.height}, {tokens} + 2 markers"
        thumb = picture.copy()
        thumb.thumbnail((2 * THUMB, THUMB))
        self._place(max(thumb.width, int(_font(16).getlength(caption))), thumb.height + 26)
        self.canvas.paste(thumb, (self.x, self.y))
        self.draw.rectangle(
            (self.x - 1, self.y - 1, self.x + thumb.width, self.y + thumb.height), outline=_colour(part), width=2
        )
        self.draw.text((self.x, self.y + thumb.height + 4), caption, MUTED, _font(16))
        self.x += self.width + GAP

    def _place(self, width: int, height: int) -> None:
        if self.x + width > WIDTH - MARGIN:
            self._line_feed()
        self.width, self.row_height = width, max(self.row_height, height)

    def _line_feed(self) -> None:
        self.y += self.row_height + (GAP if self.row_height else 0)
        self.x, self.row_height = MARGIN, 0

    def save(self, path: Path) -> None:
        self._line_feed()
        temporary = path.with_suffix(".part.png")
        self.canvas.crop((0, 0, WIDTH, self.y + MARGIN)).save(temporary)
        temporary.replace(path)


def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _colour(part: str) -> tuple[int, int, int]:
    return COLOURS.get(part.split(" ")[0], PROMPT_COLOUR)


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}".strip()
            if line and font.getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines
