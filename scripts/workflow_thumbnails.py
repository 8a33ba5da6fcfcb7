"""Draws workflows/<name>.jpg, which ComfyUI shows in its template browser: what goes in, an arrow, an empty film strip.

    python scripts/workflow_thumbnails.py

The pictures are the demo's own (assets/demo, CC0). A frame of the strip shows a picture only where the workflow pins
that very picture; nothing that a model would make is shown. Needs Pillow and PyAV (both in .venv).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import layout
import setup
import workflow_files

WIDTH, HEIGHT, SCALE = 640, 360, 2  # drawn larger, then reduced: smooth edges
BACK, PANEL, INK, FAINT, ACCENT = (24, 28, 34), (38, 44, 53), (235, 238, 242), (140, 150, 163), (255, 170, 60)
ASSETS = layout.ROOT / "assets" / "demo"
LIMIT = 60_000  # bytes
FRAMES = 5


@dataclass(frozen=True)
class Thumbnail:
    """inputs: demo pictures, "video", "voice", "prompt" or "file"; pinned: frame of the strip -> picture."""

    name: str
    title: str
    inputs: tuple[str, ...]
    pinned: tuple[tuple[int, str], ...] = ()


THUMBNAILS = (
    Thumbnail("h3te_ref2va_images", "References to video", ("rubber_duck", "lighthouse")),
    Thumbnail(
        "h3te_ref2va_images_video_voice",
        "Pictures, video and voice to video",
        ("rubber_duck", "lighthouse", "video", "voice"),
    ),
    Thumbnail(
        "h3te_fl2va_first_last",
        "First and last frame to video",
        ("harbour_dawn", "harbour_day"),
        ((0, "harbour_dawn"), (FRAMES - 1, "harbour_day")),
    ),
    Thumbnail(
        "h3te_fl2va_mid_keyframes",
        "Keyframes anywhere to video",
        ("harbour_dawn", "lighthouse", "harbour_day"),
        ((0, "harbour_dawn"), (FRAMES // 2, "lighthouse"), (FRAMES - 1, "harbour_day")),
    ),
    Thumbnail("h3te_save_conditioning", "Encode once and keep it", ("rubber_duck", "lighthouse")),
    Thumbnail("h3te_load_conditioning", "From saved conditioning", ("file",)),
    Thumbnail("h3te_t2va", "Text to video", ("prompt",)),
)


class Canvas:
    """Pillow with coordinates of the finished picture."""

    def __init__(self):
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), BACK)
        self.draw = ImageDraw.Draw(self.image)

    def box(self, x: float, y: float, width: float, height: float, colour=PANEL, radius: float = 8) -> None:
        self.draw.rounded_rectangle(_scaled(x, y, x + width, y + height), radius * SCALE, fill=colour)

    def text(self, x: float, y: float, text: str, size: float, colour=INK, anchor: str = "mm") -> None:
        from PIL import ImageFont

        font = ImageFont.load_default(size * SCALE)
        self.draw.text(_scaled(x, y), text, font=font, fill=colour, anchor=anchor)

    def shape(self, points: list[tuple[float, float]], colour=ACCENT) -> None:
        self.draw.polygon([_scaled(*point) for point in points], fill=colour)

    def picture(self, x: float, y: float, width: float, height: float, picture, radius: float = 8) -> None:
        """A Pillow image, cropped to cover the box."""
        from PIL import Image, ImageDraw, ImageOps

        size = _scaled(width, height)
        fitted = ImageOps.fit(picture.convert("RGB"), size, Image.Resampling.LANCZOS)
        mask = Image.new("L", size, 0)
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, size[0] - 1, size[1] - 1), radius * SCALE, fill=255)
        self.image.paste(fitted, _scaled(x, y), mask)

    def save(self, path: Path) -> int:
        """As JPEG under LIMIT bytes; returns its size."""
        from PIL import Image

        small = self.image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        for quality in range(90, 40, -5):
            small.save(path, quality=quality, optimize=True)
            if path.stat().st_size < LIMIT:
                return path.stat().st_size
        raise ValueError(f"{path.name}: expected less than {LIMIT} bytes, got more. Draw less into it.")


def _scaled(*values: float) -> tuple[int, ...]:
    return tuple(round(value * SCALE) for value in values)


def draw(thumbnail: Thumbnail) -> Canvas:
    canvas = Canvas()
    canvas.text(WIDTH / 2, 42, thumbnail.title, 30)
    _inputs(canvas, thumbnail.inputs)
    canvas.shape([(270, 193), (298, 193), (298, 179), (326, 203), (298, 227), (298, 213), (270, 213)])
    _strip(canvas, dict(thumbnail.pinned))
    canvas.text(WIDTH / 2, 334, thumbnail.name, 15, FAINT)
    return canvas


def _inputs(canvas: Canvas, inputs: tuple[str, ...]) -> None:
    """One large, two or three below each other, four in a square."""
    left, top, width, height, gap = 30, 90, 220, 226, 10
    columns = 2 if len(inputs) == 4 else 1
    rows = math.ceil(len(inputs) / columns)
    cell = (width - gap * (columns - 1)) / columns, (height - gap * (rows - 1)) / rows
    for i, kind in enumerate(inputs):
        x, y = left + (i % columns) * (cell[0] + gap), top + (i // columns) * (cell[1] + gap)
        _input(canvas, kind, (x, y, *cell))


def _input(canvas: Canvas, kind: str, box: tuple[float, float, float, float]) -> None:
    x, y, width, height = box
    if kind == "prompt":
        canvas.box(*box)
        for i, share in enumerate((0.86, 0.78, 0.84, 0.5, 0.0, 0.7, 0.42)):
            if share:
                canvas.box(x + 16, y + 22 + 27 * i, share * (width - 22), 11, FAINT if i < 5 else ACCENT, 5)
    elif kind == "voice":
        canvas.box(*box)
        for i in range(13):
            tall = height * 0.62 * abs(math.sin(0.9 * i) * math.sin(math.pi * (i + 1) / 14))
            canvas.box(x + width / 2 - 45 + 7 * i, y + height / 2 - tall / 2 - 2, 4, tall + 4, ACCENT, 2)
    elif kind == "file":
        _page(canvas, x + width / 2, y + height / 2, min(width, height))
    elif kind == "video":
        canvas.picture(*_inside(box, _clip_frame()), _clip_frame())
        _play(canvas, x + width / 2, y + height / 2, 15)
    else:
        canvas.picture(*_inside(box, _picture(kind)), _picture(kind))


def _page(canvas: Canvas, x: float, y: float, height: float) -> None:
    """A sheet with a folded corner and a few rows of numbers, around a point."""
    width, fold = 0.74 * height, 0.2 * height
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    canvas.shape([(left, top), (right - fold, top), (right, top + fold), (right, bottom), (left, bottom)], PANEL)
    canvas.shape([(right - fold, top), (right, top + fold), (right - fold, top + fold)], FAINT)
    for row in range(5):
        for column in range(4):
            at = left + width * (0.14 + 0.19 * column), top + height * (0.34 + 0.12 * row)
            canvas.box(*at, 0.13 * width, 0.05 * height, ACCENT if (3 * row + column) % 4 == 1 else FAINT, 2)


def _inside(box: tuple[float, float, float, float], picture) -> tuple[float, float, float, float]:
    """The whole picture in the middle of the box."""
    x, y, width, height = box
    scale = min(width / picture.width, height / picture.height)
    inner = picture.width * scale, picture.height * scale
    return x + (width - inner[0]) / 2, y + (height - inner[1]) / 2, *inner


def _strip(canvas: Canvas, pinned: dict[int, str]) -> None:
    """An empty film strip, with the pictures that are pinned."""
    left, top, width, height = 346, 120, 264, 166
    canvas.box(left, top, width, height, (12, 14, 17), 6)
    for i in range(16):
        for y in (top + 7, top + height - 17):
            canvas.box(left + 8 + i * 15.8, y, 9, 10, PANEL, 2)
    step = (width - 12) / FRAMES
    for i in range(FRAMES):
        frame = (left + 8 + i * step, top + 24, step - 4, height - 48)
        if i in pinned:
            canvas.picture(*frame, _picture(pinned[i]), 3)
        else:
            canvas.box(*frame, PANEL, 3)
    if not pinned:
        _play(canvas, left + width / 2, top + height / 2, 26)


def _play(canvas: Canvas, x: float, y: float, size: float) -> None:
    canvas.shape([(x - 0.6 * size, y - size), (x - 0.6 * size, y + size), (x + size, y)])


def _picture(name: str):
    from PIL import Image

    return Image.open(ASSETS / f"{name}.jpg")


def _clip_frame():
    import av

    with av.open(str(ASSETS / "toy_train.mp4")) as clip:
        frames = [frame.to_image() for frame in clip.decode(video=0)]
    return frames[len(frames) // 2]


def main() -> None:
    argparse.ArgumentParser(description="Draw the thumbnails of the bundled workflows.").parse_args()
    setup.enter()
    for thumbnail in THUMBNAILS:
        path = workflow_files.SAVED / f"{thumbnail.name}.jpg"
        print(f"{path.relative_to(layout.ROOT)}: {draw(thumbnail).save(path)} bytes")


if __name__ == "__main__":
    main()
