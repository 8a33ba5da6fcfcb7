"""Positions and rotary tables of both halves.

Contract: angles are always computed in float32 on the compute device from integer positions; the decoder's tables are
cast to the activation dtype, the tower's stay float32. There are no buffers: nothing to move, nothing to round.
Source: the released model (interleaved M-RoPE, axial rotary in the tower) and transformers' Qwen3-VL from 5.15 on
(closed-form position interpolation with aligned corners).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .config import TextConfig, VisionConfig
from .row_blocks import row_blocks

VISION_ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin, both [N, Dh]; the second half of Dh repeats the first."""

    cos: torch.Tensor
    sin: torch.Tensor


def inverse_frequencies(theta: float, width: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """float32 [width / 2]: theta ** -(2 i / width)."""
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float, device=device) / width))


def text_rotary(
    position_ids: torch.Tensor, config: TextConfig, device: torch.device, dtype: torch.dtype
) -> RotaryTable:
    """Interleaved M-RoPE. position_ids int64 [3, S] (time, row, column) -> tables [S, Dh] in `dtype`.

    Pair 3 j + axis takes its angle from that axis while 3 j + axis < 3 * section[axis]; all other pairs from time.
    """
    inv_freq = inverse_frequencies(config.rope_theta, config.head_dim).to(device)
    angles = position_ids.to(device)[..., None].float() * inv_freq  # [3, S, Dh / 2]

    def interleaved(table: torch.Tensor) -> torch.Tensor:
        merged = table[0].clone()
        for axis in (1, 2):
            pairs = slice(axis, 3 * config.mrope_section[axis], 3)
            merged[:, pairs] = table[axis, :, pairs]
        return torch.cat((merged, merged), dim=-1).to(dtype)  # [S, Dh]

    return RotaryTable(interleaved(angles.cos()), interleaved(angles.sin()))


def vision_rotary(rows_columns: torch.Tensor, config: VisionConfig, device: torch.device) -> RotaryTable:
    """Axial rotary. rows_columns int64 [N, 2] -> float32 tables [N, Dh]: row angles, column angles, both repeated."""
    inv_freq = inverse_frequencies(VISION_ROPE_THETA, config.hidden_size // config.num_heads // 2).to(device)
    angles = rows_columns.to(device)[..., None].float() * inv_freq  # [N, 2, Dh / 4]
    cos, sin = (table.flatten(1) for table in (angles.cos(), angles.sin()))  # [N, Dh / 2]
    return RotaryTable(torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1))


def apply_rotary(x: torch.Tensor, table: RotaryTable, out: torch.Tensor | None = None) -> torch.Tensor:
    """x [N, H, Dh] rotated in the dtype of the table, in x.dtype: `x * cos + (-second, first) * sin` of its halves.
    out: where the result is put, which may be x itself."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    half = x.shape[-1] // 2
    for rows in row_blocks(x):
        cos, sin = table.cos[rows, None], table.sin[rows, None].clone()
        sin[..., :half].neg_()  # (-a) * b and a * (-b) round alike
        part = x[rows].to(cos.dtype)
        crossed = torch.cat((part[..., half:], part[..., :half]), dim=-1).mul_(sin)
        if cos.dtype == x.dtype:
            torch.mul(part, cos, out=out[rows]).add_(crossed)
        else:
            out[rows] = part.mul_(cos).add_(crossed)
    return out


def patch_positions(grids: Iterable[Sequence[int]], merge: int) -> torch.Tensor:
    """(t, h, w) grids -> int64 [N, 2]: row and column of each patch in merge-block order, repeated per temporal
    step."""
    parts = []
    for t, h, w in grids:
        plane = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"), dim=-1)  # [h, w, 2]
        blocks = plane.view(h // merge, merge, w // merge, merge, 2).transpose(1, 2)
        parts.append(blocks.reshape(h * w, 2).repeat(t, 1))
    return torch.cat(parts)


def interpolation_taps(
    grids: Iterable[Sequence[int]], merge: int, side: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bilinear taps into a side x side table, corners aligned.

    Returns indices int64 [N, 4] and weights float32 [N, 4], patches in merge-block order as `patch_positions`.
    """
    grids = [tuple(grid) for grid in grids]
    positions = patch_positions(grids, merge).to(device)
    sizes = torch.cat([torch.tensor([[h, w]]).expand(t * h * w, 2) for t, h, w in grids]).to(device)
    source = positions.float() * (side - 1) / torch.clamp(sizes - 1, min=1)  # [N, 2], closed form
    floor = source.floor()
    offsets = torch.arange(2, device=device)
    taps = (floor.long()[..., None] + offsets).clamp(0, side - 1)  # [N, 2 axes, 2 taps]
    weights = (1 - (source[..., None] - floor[..., None] - offsets).abs()).clamp(min=0)
    indices = taps[:, 0, :, None] * side + taps[:, 1, None, :]  # [N, 2, 2]
    return indices.flatten(1), (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1)
