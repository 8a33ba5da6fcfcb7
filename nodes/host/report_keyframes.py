"""What the keyframe node says about its keyframes: warnings, where each one is, and the canvas it took.

Contract: plain text lines for report.py.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def keyframe_facts(keyframes: Sequence[Keyframe]) -> list[str]:
    """One line: at which frame each one is, and which <Picture n>."""
    numbers = iter(range(1, len(keyframes) + 1))
    places = (f"{_place(k)}, {f'<Picture {next(numbers)}>' if k.show else 'not shown'}" for k in keyframes)
    return [f"keyframes: {'; '.join(places)}"] if keyframes else []


def described_keyframes(keyframes: Sequence[Keyframe]) -> dict[str, str]:
    """What each <Picture n> is, by its name: where it is, and how large what arrived."""
    shown = (k for k in keyframes if k.show)
    return {f"Picture {i}": f"{_place(k)}; {_arrived(k)}" for i, k in enumerate(shown, 1)}


def _place(keyframe: Keyframe) -> str:
    return f"{keyframe.where} at frame {keyframe.frame} ({keyframe.frame / FPS:.2f} s)"


def _arrived(keyframe: Keyframe) -> str:
    height, width = keyframe.pixels.shape[:2]
    given = keyframe.given
    if given == (width, height):
        return f"{width}x{height} as it is"
    return f"{given[0]}x{given[1]} fitted to {width}x{height}"
