"""int8 weights with one scale a tensor or a row, plain or rotated by groups of columns (convrot).

Contract: W = q * scale. Rotated (groups of G columns, G a power of 4): W = (q * scale) H^T per group, H the Kronecker
power of the 4 x 4 matrix below, divided by sqrt(G). Sums of 8-bit codes times +-1 are whole numbers that float32 (and
int32) hold exactly, so the rotation is done on the codes, without any rounding, and the scale comes last: the result is
the exact matrix rounded once, equal on every device. Source: ComfyUI's `int8_tensorwise` layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .packing import Packing, Part, Parts, Unit

_H4 = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))


@dataclass(frozen=True)
class Int8(Packing):
    """`per_row`: scale [N, 1] instead of []; `group`: columns rotated together, 0 for none."""

    per_row: bool = True
    group: int = 0

    name = "int8"

    @property
    def parts(self) -> dict[str, Part]:
        scale = (self.shape[0], 1) if self.per_row else ()
        return {"weight": Part(torch.int8, self.shape), "weight_scale": Part(torch.float32, scale)}

    @property
    def units(self) -> dict[str, Unit]:
        return {"weight": Unit(1, 1, 1), "weight_scale": Unit(int(self.per_row), 0, 4)}

    @property
    def grain(self) -> tuple[int, int]:
        return 1, self.group or 1

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        scale = parts["weight_scale"]
        return self._scaled(parts["weight"][start:stop], scale[start:stop] if self.per_row else scale)

    def _scaled(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if not self.group:
            return codes.float() * scale
        return rotate_back(codes, self.group).mul_(scale * (self.group**-0.5))


def rotate_back(codes: torch.Tensor, group: int) -> torch.Tensor:
    """int8 [n, K] -> float32 [n, K]: whole numbers, still to be divided by sqrt(group)."""
    signs = hadamard(group, codes.device)
    grouped = codes.reshape(-1, group)
    if _has_int8_product(codes.device.type) and len(grouped) > 16:  # CUDA's needs more than 16 rows
        return torch._int_mm(grouped, signs).float().view(codes.shape)
    return (grouped.float() @ signs.float()).view(codes.shape)


@lru_cache(maxsize=16)
def hadamard(group: int, device: torch.device) -> torch.Tensor:
    """int8 [group, group] of +-1, symmetric, its rows orthogonal. Raises ValueError unless a power of 4."""
    signs, size = torch.tensor(_H4, dtype=torch.float32), 4
    matrix = signs
    while size < group:
        matrix, size = torch.kron(matrix, signs), size * 4
    if size != group:
        raise ValueError(
            f"convrot: expected groups of 4, 16, 64, 256 or 1024 columns, got {group}. The file is of another kind."
        )
    return matrix.to(torch.int8).to(device)


@lru_cache(maxsize=8)
def _has_int8_product(device_type: str) -> bool:
    """int8 x int8 -> int32 on this device; float32 gives the same whole numbers, slower."""
    try:
        one = torch.ones(32, 16, dtype=torch.int8, device=device_type)
        return bool((torch._int_mm(one, one.t()[:, :16].contiguous()) == 16).all())
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
