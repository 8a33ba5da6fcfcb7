"""The golden cases: their pixels, their references and the expected conditioning."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference
from safetensors.torch import load_file

GOLDENS = Path(__file__).resolve().parent / "goldens"
CASES = {case["name"]: case for case in json.loads((GOLDENS / "cases.json").read_text(encoding="utf-8"))}


@lru_cache(maxsize=1)
def expected() -> dict[str, torch.Tensor]:
    """NAME.ids and NAME.tags int64 [S], NAME.hidden float32 [S, D], by case name."""
    return load_file(GOLDENS / "expected.safetensors")


def pattern(height: int, width: int, seed: int) -> np.ndarray:
    """A picture of the goldens: uint8 [H, W, 3], coloured and without symmetry."""
    y, x, c = np.arange(height)[:, None, None], np.arange(width)[None, :, None], np.arange(3)
    across = np.abs((x * (3 + c) + 17 * seed) % 256 - 128)
    down = np.abs((y * (5 - c) + 29 * seed) % 256 - 128)
    return np.minimum(255, across + down).astype(np.uint8)


def clip(frames: int, height: int, width: int, seed: int) -> np.ndarray:
    """A video of the goldens at 24 fps: uint8 [T, H, W, 3]."""
    return np.stack([pattern(height, width, seed + t) for t in range(frames)])


def references(case: dict, convert=lambda pixels: pixels) -> list:
    """The references of a case in request order; `convert` makes something else of each uint8 array."""
    return [_reference(reference, convert) for reference in case["references"]]


def _reference(reference: dict, convert):
    if reference["kind"] == "audio":
        return AudioReference()
    if reference["kind"] == "image":
        return ImageReference(convert(pattern(*reference["size"], reference["seed"])))
    frames = clip(reference["frames"], *reference["size"], reference["seed"])
    return VideoReference(convert(frames), has_audio=reference["has_audio"])


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative L2 distance, in float64."""
    got, wanted = got.double(), wanted.double()
    return float((got - wanted).norm() / wanted.norm())
