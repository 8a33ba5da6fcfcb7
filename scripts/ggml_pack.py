"""Packs rows of float32 into ggml's blocks, for GGUF files made here: tests, demo and benchmarks.

`packed(rows, type)`. The `gguf` package packs F16, BF16, Q8_0 and the _0 and _1 formats; its Python part cannot pack
Q4_K and Q6_K, so those are packed here, each group by its largest value alone. llama.cpp searches for better scales:
files made here are valid and a little coarser than people's.
"""

from __future__ import annotations

import gguf
import numpy as np


def packed(rows: np.ndarray, kind: str) -> np.ndarray:
    """float32 [n, K] -> what a file holds for it: float32, float16 or uint8 [n, bytes of a row]."""
    if kind == "F32":
        return rows
    if kind == "F16":
        return rows.astype(np.float16)
    if kind not in _OURS:
        return gguf.quants.quantize(rows, gguf.GGMLQuantizationType[kind])
    blocks = _OURS[kind](rows.reshape(-1, 256))
    return blocks.reshape(len(rows), -1)


def _ratio(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """values / steps; 0 where the step is 0."""
    return np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)


def _steps(scales: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """[n, groups] of wanted scales -> (float16 [n, 1], whole numbers up to `most`) whose product is near them."""
    block = (np.abs(scales).max(axis=1, keepdims=True) / most).astype(np.float16)
    return block, np.clip(np.rint(_ratio(scales, block.astype(np.float32))), -most, most)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    groups = blocks.reshape(-1, 16, 16)
    block, whole = _steps(np.abs(groups).max(axis=2) / 31, 127)
    codes = np.rint(_ratio(groups, np.broadcast_to((block.astype(np.float32) * whole)[..., None], groups.shape)))
    codes = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves, runs of 32
    low = (codes[:, :, :2] & 15) | ((codes[:, :, 2:] & 15) << 4)
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = (low, high, whole.astype(np.int8).view(np.uint8), block.view(np.uint8))
    return np.concatenate([part.reshape(len(blocks), -1) for part in parts], axis=1)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    groups = blocks.reshape(-1, 8, 32)
    minima = np.maximum(-groups.min(axis=2), 0)
    (block, scales), (lowest, offsets) = _steps((groups.max(axis=2) + minima) / 15, 63), _steps(minima, 63)
    shifted = groups + (lowest.astype(np.float32) * offsets)[..., None]
    codes = np.rint(_ratio(shifted, np.broadcast_to((block.astype(np.float32) * scales)[..., None], groups.shape)))
    codes = np.clip(codes, 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    parts = (block.view(np.uint8), lowest.view(np.uint8), _six_bits(scales.astype(np.uint8), offsets.astype(np.uint8)),
             codes[:, :, 0] | (codes[:, :, 1] << 4))  # fmt: skip
    return np.concatenate([part.reshape(len(blocks), -1) for part in parts], axis=1)


def _six_bits(scales: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """8 scales and 8 offsets of 6 bits in 12 bytes: the second four of each give their two high bits to the first."""
    first, last = slice(0, 4), slice(4, 8)
    return np.concatenate(
        [
            scales[:, first] | ((scales[:, last] >> 4) << 6),
            offsets[:, first] | ((offsets[:, last] >> 4) << 6),
            (scales[:, last] & 15) | ((offsets[:, last] & 15) << 4),
        ],
        axis=1,
    )


_OURS = {"Q4_K": _q4_k, "Q6_K": _q6_k}
