"""What the keyframe node says about its keyframes: warnings, where each one is, and the canvas it took.

Contract: plain text lines for report.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...encoder.pixels import FPS
from ..chains import KeyframeItem
from .images import size_of
from .keyframes import Keyframe
from .references import Target

NO_VAE_KEYFRAMES = "no VAE: keyframes will not pin frames"


def keyframe_warnings(keyframes: Sequence[Keyframe], vae: object) -> list[str]:
    """What is given in vain: without a VAE no keyframe pins, and one that is not shown either does nothing."""
    if vae is not None or not keyframes:
        return []
    idle = ", ".join(k.where for k in keyframes if not k.show)
    return [NO_VAE_KEYFRAMES, *([f"neither pinned nor shown to the encoder: {idle}"] if idle else [])]


def about_canvas(items: Sequence[KeyframeItem], target: Target) -> str:
    """Which canvas was taken from the first keyframe."""
    first = items[0]
    width, height = size_of(first.pixels, first.where)
    return f"canvas {target.width}x{target.height} from {first.where} ({width}x{height}); width and height are not read"


def describe_keyframes(keyframes: Sequence[Keyframe]) -> list[str]:
    """One line: at which frame each one is, and which <Picture n>."""
    numbers = iter(range(1, len(keyframes) + 1))
    return [f"keyframes: {'; '.join(_place(k, numbers) for k in keyframes)}"] if keyframes else []


def _place(keyframe: Keyframe, numbers: Iterator[int]) -> str:
    seen = f"<Picture {next(numbers)}>" if keyframe.show else "not shown"
    return f"{keyframe.where} at frame {keyframe.frame} ({keyframe.frame / FPS:.2f} s), {seen}"
