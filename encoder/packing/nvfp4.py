"""nvfp4 weights: 4-bit floats (E2M1), one float8 scale a run of 16 columns, one float32 scale a matrix.

Contract: W = E2M1[code] * (block_scale * scale_2), in float32 and in that grouping. The high nibble of a byte is the
even column. The block scales lie as cuBLAS wants them: padded to multiples of 128 rows and 4 columns, in tiles of
128 x 4 whose 32 lines of 16 bytes hold rows r, r + 32, r + 64 and r + 96. They are put in order per chunk of rows.
Source: ComfyUI's `nvfp4` layout.

Codes become numbers by looking up pairs: one byte names two float32, moved as one 8-byte word. That is several times
as fast on a CPU as taking nibbles apart, and the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .packing import Packing, Part, Parts, Unit

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCK = 16  # columns that share a scale
TILE_ROWS, TILE_COLUMNS, LINES = 128, 4, 32  # of the swizzled scales


@dataclass(frozen=True)
class Nvfp4(Packing):
    """Raises ValueError for a shape that is no matrix of whole blocks of 16 columns."""

    name = "nvfp4"
    rows_apart = False

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or self.shape[1] % BLOCK:
            raise ValueError(
                f"nvfp4: expected a matrix whose columns are a multiple of {BLOCK}, got {list(self.shape)}. "
                "The file is damaged or of another kind: replace it."
            )

    @property
    def parts(self) -> dict[str, Part]:
        rows, columns = self.shape
        return {
            "weight": Part(torch.uint8, (rows, columns // 2)),
            "weight_scale": Part(torch.float8_e4m3fn, padded_scale_shape(rows, columns)),
            "weight_scale_2": Part(torch.float32, ()),
        }

    @property
    def units(self) -> dict[str, Unit]:
        """Scales lie in tiles: 128 rows of four scales, each for a block of 16 columns."""
        tile = Unit(TILE_ROWS, TILE_COLUMNS * BLOCK, TILE_ROWS * TILE_COLUMNS)
        return {"weight": Unit(1, 2, 1), "weight_scale": tile, "weight_scale_2": Unit(0, 0, 4)}

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        codes = parts["weight"][start:stop].reshape(-1).int()
        words = _pairs(codes.device).index_select(0, codes)  # [n * K / 2], two float32 each
        blocks = words.view(torch.float32).view(-1, BLOCK)
        return blocks.mul_(self._scales(parts, start, stop)).view(stop - start, self.shape[1])

    def _scales(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        """float32 [n * K / 16, 1]: block scale times the matrix's, in the order of the rows."""
        swizzled = parts["weight_scale"].reshape(-1).view(torch.uint8)
        first, last = start // TILE_ROWS, -(-stop // TILE_ROWS)
        tiles_across = padded_scale_shape(*self.shape)[1] // TILE_COLUMNS
        band = TILE_ROWS * TILE_COLUMNS * tiles_across  # bytes of one row of tiles
        # Four columns of a row are one word; copied first, because a mapped file may hold them at an odd offset.
        words = swizzled[first * band : last * band].clone().view(torch.int32)
        ordered = words.view(last - first, tiles_across, LINES, -1).permute(0, 3, 2, 1).reshape(-1, tiles_across)
        ordered = ordered[start - first * TILE_ROWS : stop - first * TILE_ROWS].contiguous().view(torch.uint8)
        codes = ordered[:, : self.shape[1] // BLOCK].reshape(-1).int()
        scales = _e4m3(codes.device) * parts["weight_scale_2"].reshape(()).float()
        return scales.index_select(0, codes).unsqueeze(-1)


def padded_scale_shape(rows: int, columns: int) -> tuple[int, int]:
    """Of the stored block scales of a matrix [rows, columns]."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-(columns // BLOCK) // TILE_COLUMNS) * TILE_COLUMNS


@lru_cache(maxsize=16)
def _pairs(device: torch.device) -> torch.Tensor:
    """int64 [256]: for each byte the two float32 it stands for, as one word."""
    values = torch.tensor(_E2M1)
    byte = torch.arange(256)
    return torch.stack([values[byte >> 4], values[byte & 15]], dim=-1).view(torch.int64).view(-1).to(device)


@lru_cache(maxsize=16)
def _e4m3(device: torch.device) -> torch.Tensor:
    """float32 [256]: every float8 of the block scales."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)
