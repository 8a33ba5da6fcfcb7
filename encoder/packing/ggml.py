"""Weights of GGUF files, kept in ggml's blocks.

Contract: `Ggml(shape, type)` stands for a matrix whose values, row after row, are cut into blocks of 32 or 256. Rows
are whole blocks, contiguous, except in tensors that were packed over all their values at once; there chunks begin where
a row and a block begin together (`row_step`). Values equal those of the `gguf` package bit for bit. `TORCH_TYPES` are
unpacked by torch on any device; another type that `gguf` can unpack goes through numpy on the CPU, and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import torch

from . import ggml_blocks as small
from . import ggml_kquants as large
from .packing import Packing, Part, Parts, Unit

logger = logging.getLogger(__name__)

# Values of a block, its bytes, uint8 [n, bytes] -> float32 [n, values].
_KERNELS: dict[str, tuple[int, int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "Q8_0": (32, 34, small.q8_0), "Q4_0": (32, 18, small.q4_0), "Q4_1": (32, 20, small.q4_1),
    "Q5_0": (32, 22, small.q5_0), "Q5_1": (32, 24, small.q5_1), "IQ4_NL": (32, 18, small.iq4_nl),
    "Q2_K": (256, 84, large.q2_k), "Q3_K": (256, 110, large.q3_k), "Q4_K": (256, 144, large.q4_k),
    "Q5_K": (256, 176, large.q5_k), "Q6_K": (256, 210, large.q6_k), "IQ4_XS": (256, 136, large.iq4_xs),
}  # fmt: skip
TORCH_TYPES = tuple(_KERNELS)


@dataclass(frozen=True)
class Ggml(Packing):
    """`type`: ggml's name of it, "Q4_K". Raises ValueError where it cannot be unpacked or does not fit the shape."""

    type: str = "Q8_0"

    def __post_init__(self) -> None:
        if prod(self.shape) % block_size(self.type)[0]:
            raise ValueError(
                f"GGUF: expected a number of values that {self.type} can hold in blocks of "
                f"{block_size(self.type)[0]}, got the shape {list(self.shape)}. The file is damaged: replace it."
            )

    @property
    def name(self) -> str:
        return self.type

    @property
    def row_step(self) -> int:
        values = block_size(self.type)[0]
        return values // gcd(values, self._width)

    @property
    def rows_apart(self) -> bool:
        return self.row_step == 1

    @property
    def parts(self) -> dict[str, Part]:
        values, stored = block_size(self.type)
        total = prod(self.shape) // values * stored
        rows = (self.shape[0],) if self.row_step == 1 else ()
        return {"weight": Part(torch.uint8, (*rows, total // prod(rows)))}

    @property
    def units(self) -> dict[str, Unit]:
        """None where blocks run over the ends of rows."""
        values, stored = block_size(self.type)
        return {"weight": Unit(1, values, stored)} if self.row_step == 1 else {}

    @property
    def _width(self) -> int:
        return prod(self.shape[1:])

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        values, stored = block_size(self.type)
        begin, end = (row * self._width // values for row in (start, stop))
        blocks = parts["weight"].reshape(-1, stored)[begin:end]
        return _unpacked(self.type, blocks).view(stop - start, self._width)


def row_bytes(type: str, width: int) -> int:
    """Bytes of one row of `width` values. Raises ValueError unless they are whole blocks."""
    values, stored = block_size(type)
    if width % values:
        raise ValueError(
            f"GGUF: expected rows of whole {type} blocks of {values} values, got {width}. Replace the file."
        )
    return width // values * stored


def block_size(type: str) -> tuple[int, int]:
    """(values, bytes) of one block. Raises ValueError for a type that cannot be unpacked."""
    return _KERNELS[type][:2] if type in _KERNELS else _numpy_block_size(type)


def _unpacked(type: str, blocks: torch.Tensor) -> torch.Tensor:
    return _KERNELS[type][2](blocks) if type in _KERNELS else _through_numpy(type, blocks)


@lru_cache(maxsize=32)
def _numpy_block_size(type: str) -> tuple[int, int]:
    """Of a type that the `gguf` package unpacks; tried on one block."""
    try:
        import gguf
        from numpy import uint8, zeros

        known = gguf.GGMLQuantizationType[type]
        values, stored = gguf.GGML_QUANT_SIZES[known]
        gguf.quants.dequantize(zeros((1, stored), dtype=uint8), known)
    except (ImportError, KeyError, NotImplementedError) as error:
        raise ValueError(
            f"GGUF: expected weights in {', '.join(TORCH_TYPES)} or a type that the installed gguf package unpacks, "
            f"got {type}. Use a file in one of these, or update the package: pip install -U gguf."
        ) from error
    logger.warning("GGUF: %s has no torch kernel here: it is unpacked by numpy on the CPU, which is slow.", type)
    return values, stored


def _through_numpy(type: str, blocks: torch.Tensor) -> torch.Tensor:
    values, _ = _numpy_block_size(type)
    if blocks.is_meta:
        return torch.empty(len(blocks), values, device="meta")
    import gguf

    unpacked = gguf.quants.dequantize(blocks.cpu().numpy(), gguf.GGMLQuantizationType[type])
    return torch.from_numpy(unpacked).to(blocks.device, torch.float32)
