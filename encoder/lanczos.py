"""A part of a resized picture, without the rest of it.

Contract: the bytes that PIL's LANCZOS resize of uint8 gives there. PIL resizes along x, rounds to uint8, then along y
(recent Pillow begins with y for some pictures that are much higher than wide or lose most of their height; here x is
always first, as it was when the model was released). Each output pixel is a weighted sum of source pixels around its
centre, with weights rounded to 22 binary digits.
"""

from __future__ import annotations

import math

import numpy as np

LOBES = 3
PRECISION = 22  # binary digits of a weight

Pair = tuple[int, int]


def window(image: np.ndarray, size: Pair, corner: Pair, extent: Pair) -> np.ndarray:
    """uint8 [H, W, C] resized to `size`, cropped to `extent` at `corner` (all x, y): uint8 [extent y, extent x, C]."""
    starts, weights = _axis(image.shape[0], size[1], corner[1], extent[1])
    # of the first pass only the rows that the second one reads
    rows = image[int(starts.min()) : int(starts.max()) + weights.shape[1]]
    columns = _apply(rows.swapaxes(0, 1), *_axis(image.shape[1], size[0], corner[0], extent[0])).swapaxes(0, 1)
    return np.ascontiguousarray(_apply(columns, starts - starts.min(), weights))


def _axis(source: int, size: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """First source pixel [count] and integer weights [count, taps] of the output pixels first .. first + count."""
    if source == size:  # PIL leaves such an axis as it is
        return np.arange(first, first + count), np.full((count, 1), 1 << PRECISION)
    scale = source / size
    widening = max(scale, 1.0)
    reach = LOBES * widening
    centres = (np.arange(first, first + count) + 0.5) * scale
    starts = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + reach + 0.5).astype(np.int64), source)
    taps = np.arange(int((ends - starts).max()))
    weights = _lanczos((taps + starts[:, None] - centres[:, None] + 0.5) * (1.0 / widening))
    weights[taps >= (ends - starts)[:, None]] = 0
    weights /= np.cumsum(weights, axis=1)[:, -1:]  # one after the other, as the last bit depends on it
    return starts, np.trunc(weights * (1 << PRECISION) + np.copysign(0.5, weights)).astype(np.int64)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -LOBES) & (x < LOBES), _sinc(x) * _sinc(x / LOBES), 0.0)


def _sinc(x: np.ndarray) -> np.ndarray:
    angle = np.where(x == 0, 1.0, x * math.pi)
    return np.where(x == 0, 1.0, np.sin(angle) / angle)


def _apply(image: np.ndarray, starts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted sums along axis 0, rounded and clamped."""
    total = np.full((len(starts), *image.shape[1:]), 1 << (PRECISION - 1), dtype=np.int64)
    for tap in range(weights.shape[1]):  # past the end the weight is 0
        pixels = image[np.minimum(starts + tap, len(image) - 1)].astype(np.int64)
        total += pixels * weights[:, tap, None, None]
    return (total >> PRECISION).clip(0, 255).astype(np.uint8)
