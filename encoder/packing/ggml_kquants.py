"""GGUF blocks of 256 values with scales of their own for every 16 or 32: Q2_K .. Q6_K and IQ4_XS.

Contract: each function takes uint8 [n, bytes of a block] and returns float32 [n, 256]. A group's scale is the block's
float16 scale times a small whole number; the K formats with a minimum subtract a second such product. Where a byte
holds codes of several values, those lie 32 values apart: shifting a run of bytes yields the next 32 values. Source:
ggml's block layouts. Every product and difference is rounded on its own, in float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .ggml_blocks import half, iq4_values, nibbles


def _fields(packed: torch.Tensor, shifts: Iterable[int], mask: int) -> torch.Tensor:
    """The bits of `mask` at each shift of every byte: uint8 [..., c] -> uint8 [..., shifts, c]; four bytes at once."""
    words, masks = packed.clone(memory_format=torch.contiguous_format).view(torch.int32), mask * 0x01010101
    return torch.stack([(words >> shift) & masks for shift in shifts], dim=-2).view(torch.uint8)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two-bit codes: uint8 [n, 64] -> uint8 [n, 8, 32]; each half of the bytes holds four runs of 32 values."""
    return _fields(codes.view(-1, 2, 32), (0, 2, 4, 6), 3).flatten(1, 2)


def _scaled(codes: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None = None) -> torch.Tensor:
    """codes [n, ...] of 256 values in order, scales and minima float32 [n, groups] -> float32 [n, 256]."""
    count, groups = scales.shape
    values = codes.reshape(count, groups, 256 // groups).float().mul_(scales[..., None])
    if minima is not None:
        values.sub_(minima[..., None])
    return values.view(count, 256)


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    packed = blocks[:, :16]  # low nibble: scale, high nibble: minimum of 16 values
    scales, minima = half(blocks, 80) * (packed & 15), half(blocks, 82) * (packed >> 4)
    return _scaled(_pairs(blocks[:, 16:80]), scales, minima)


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(blocks[:, :32], range(8), 1)  # [n, 8, 32]; 0 there means minus 4
    codes = (_pairs(blocks[:, 32:96]) | (high << 2)).float().sub_(4)
    return _scaled(codes, half(blocks, 108) * _six_bit_scales(blocks[:, 96:108]))


def _six_bit_scales(packed: torch.Tensor) -> torch.Tensor:
    """Q3_K: 12 bytes -> float32 [n, 16]: 4 low bits in 8 bytes, 2 high bits in the last 4, minus 32."""
    low = nibbles(packed[:, :8]).flatten(1)
    high = _fields(packed[:, 8:], (0, 2, 4, 6), 3)  # [n, 4, 4]
    return (low | (high.flatten(1) << 4)).float().sub_(32)


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K and Q5_K: two float16, then 8 scales and 8 minima of 6 bits in 12 bytes -> float32 [n, 8] each."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return half(blocks, 0) * scales, half(blocks, 2) * minima


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _scaled(nibbles(blocks[:, 16:].view(-1, 4, 32)), *_scales_and_minima(blocks))


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(blocks[:, 16:48], range(8), 1)  # [n, 8, 32]
    codes = nibbles(blocks[:, 48:].view(-1, 4, 32)).flatten(1, 2) | (high << 4)
    return _scaled(codes, *_scales_and_minima(blocks))


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 8, 32)
    codes = (low | (_pairs(blocks[:, 128:192]) << 4)).float().sub_(32)
    return _scaled(codes, half(blocks, 208) * blocks[:, 192:208].view(torch.int8))


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), dim=-1)  # [n, 4, 2]
    high = torch.stack([(blocks[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1)  # [n, 2, 4]
    scales = (low.flatten(1) | (high.flatten(1) << 4)).float().sub_(32)
    return _scaled(iq4_values(nibbles(blocks[:, 8:].view(-1, 8, 16))), half(blocks, 0) * scales)
