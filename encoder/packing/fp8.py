"""fp8 weights: float8 codes (e4m3 or e5m2) with one scale a matrix, a row, or a block of rows and columns.

Contract: W = code * scale in float32. `Fp8`: scale [], [1] or [N, 1], under any name (ComfyUI's `weight_scale`, the
older `scale_weight`). `BlockFp8`: Hugging Face's `weight_scale_inv` [N / rows, K / columns], blocks at the edges cut
short; despite its name it multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch

from .packing import Packing, Part, Parts, Unit


@dataclass(frozen=True)
class Fp8(Packing):
    """`code`: torch.float8_e4m3fn or torch.float8_e5m2. Raises ValueError for a scale of another shape."""

    code: torch.dtype = torch.float8_e4m3fn
    scale_shape: tuple[int, ...] = ()
    scale_name: str = "weight_scale"
    scale_dtype: torch.dtype = torch.float32

    name = "fp8"

    def __post_init__(self) -> None:
        if prod(self.scale_shape) != 1 and self.scale_shape not in ((self.shape[0],), (self.shape[0], 1)):
            raise ValueError(
                f"fp8: expected one scale, or one for each of {self.shape[0]} rows, got {list(self.scale_shape)}. "
                "The file is damaged or of another kind: replace it."
            )

    @property
    def parts(self) -> dict[str, Part]:
        return {"weight": Part(self.code, self.shape), self.scale_name: Part(self.scale_dtype, self.scale_shape)}

    @property
    def units(self) -> dict[str, Unit]:
        per_row = int(prod(self.scale_shape) > 1)
        return {"weight": Unit(1, 1, 1), self.scale_name: Unit(per_row, 0, self.scale_dtype.itemsize)}

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        return self._scaled(parts["weight"][start:stop], self._scale(parts)[start:stop])

    def of_rows(self, count: int) -> Fp8:
        scale = (count, *self.scale_shape[1:]) if prod(self.scale_shape) > 1 else self.scale_shape
        return replace(self, shape=(count, *self.shape[1:]), scale_shape=scale)

    def _scale(self, parts: Parts) -> torch.Tensor:
        """float32 [N, 1], without a copy when one scale serves all rows."""
        return parts[self.scale_name].float().reshape(-1, 1).expand(self.shape[0], 1)

    def _scaled(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return to_float(codes).mul_(scale)


@dataclass(frozen=True)
class BlockFp8(Packing):
    """`block`: rows and columns that share a scale; `scale_dtype`: torch.bfloat16 or torch.float32."""

    block: tuple[int, int] = (128, 128)
    scale_dtype: torch.dtype = torch.bfloat16

    name = "fp8 with block scales"
    rows_apart = False

    @property
    def parts(self) -> dict[str, Part]:
        scale = tuple(-(-size // step) for size, step in zip(self.shape, self.block, strict=True))
        return {
            "weight": Part(torch.float8_e4m3fn, self.shape),
            "weight_scale_inv": Part(self.scale_dtype, scale),
        }

    @property
    def units(self) -> dict[str, Unit]:
        return {"weight": Unit(1, 1, 1), "weight_scale_inv": Unit(*self.block, self.scale_dtype.itemsize)}

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        values = to_float(parts["weight"][start:stop])
        scale = parts["weight_scale_inv"]
        of_row = torch.arange(start, stop, device=scale.device) // self.block[0]
        return self._scaled(values, scale.float()[of_row])

    def _scaled(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """`scale`: float32 [n, blocks of columns]."""
        width = self.block[1]
        whole = self.shape[1] // width
        body = values[:, : whole * width].unflatten(1, (whole, width)) if whole else values[:, :0].unsqueeze(-1)
        body.mul_(scale[:, :whole].unsqueeze(-1))
        values[:, whole * width :].mul_(scale[:, whole:])  # the block that the edge cuts short, if any
        return values


def to_float(codes: torch.Tensor) -> torch.Tensor:
    """float8 [...] -> float32 [...], exact. On a CPU torch converts one by one; looking up is four times as fast."""
    if codes.device.type != "cpu":
        return codes.float()
    names = codes.reshape(-1).view(torch.uint8).int()
    return _values(codes.dtype).index_select(0, names).view(codes.shape)


@lru_cache(maxsize=4)
def _values(code: torch.dtype) -> torch.Tensor:
    """float32 [256]: every value of a float8 type."""
    return torch.arange(256, dtype=torch.uint8).view(code).float()
