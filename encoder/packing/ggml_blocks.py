"""GGUF blocks of 32 values with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL.

Contract: each function takes uint8 [n, bytes of a block] and returns float32 [n, 32]. A block begins with its float16
scale (and, in the _1 formats, its float16 minimum); codes follow, 4-bit codes two to a byte: the low nibbles are values
0..15, the high nibbles values 16..31. Source: ggml's block layouts. Products are rounded once, then sums, in float32.
"""

from __future__ import annotations

import torch

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # non-linear 4-bit codes


def half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].view(torch.float16).float()


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [..., c] -> uint8 [..., 2, c]: all low nibbles, then all high ones."""
    return torch.stack((codes & 15, codes >> 4), dim=-2)


def _fifth_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Bit j of the 32 bits at byte `at`, as 0 or 16 for value j: uint8 [n, 32]. Eight at once, by a table of bytes."""
    every, bit = (torch.arange(n, dtype=torch.uint8, device=blocks.device) for n in (256, 8))
    table = ((every[:, None] >> bit) & 1).mul_(16).view(torch.int64).flatten()
    return table.index_select(0, blocks[:, at : at + 4].flatten().int()).view(torch.uint8).view(-1, 32)


def q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(half(blocks, 0))


def q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return nibbles(blocks[:, 2:]).flatten(1).float().sub_(8).mul_(half(blocks, 0))


def q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return nibbles(blocks[:, 4:]).flatten(1).float().mul_(half(blocks, 0)).add_(half(blocks, 2))


def q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = nibbles(blocks[:, 6:]).flatten(1) | _fifth_bits(blocks, 2)
    return codes.float().sub_(16).mul_(half(blocks, 0))


def q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = nibbles(blocks[:, 8:]).flatten(1) | _fifth_bits(blocks, 4)
    return codes.float().mul_(half(blocks, 0)).add_(half(blocks, 2))


def iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return iq4_values(nibbles(blocks[:, 2:]).flatten(1)).mul_(half(blocks, 0))


def iq4_values(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes 0..15 -> the float32 whole numbers they stand for."""
    table = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=codes.device)
    return table.index_select(0, codes.flatten().int()).view(codes.shape)
