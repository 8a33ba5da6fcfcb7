"""Quantises one weight into the tensors that files of packed formats hold: the reverse of `encoder/packing`.

Contract: `quantise(format, weight)` -> {suffix: tensor}, the suffix being what follows the layer's name in the file
("weight", "weight_scale", "comfy_quant"). Rounding to nearest, float32 arithmetic, in chunks of rows: beside the result
and the source it needs tens of megabytes at any size. On a meta tensor it returns meta tensors, so that a header can be
written before any weight is read. torch only, nothing of the pack: the tests compare the pack with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import torch

FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
HF_BLOCK = 128
_CHUNK = 1 << 20  # float32 elements at a time
_H4 = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))
Tensors = dict[str, torch.Tensor]


class _Rows:
    """A weight read in float32 by runs of rows; columns divided by `divisor` [K] if there is one."""

    def __init__(self, weight: torch.Tensor, divisor: torch.Tensor | None):
        self.shape, self.device = weight.shape, weight.device
        self._weight, self._divisor = weight, None if divisor is None else divisor.float().to(weight.device)

    def __iter__(self) -> Iterator[tuple[slice, torch.Tensor]]:
        return self.runs()

    def runs(self, multiple: int = 1) -> Iterator[tuple[slice, torch.Tensor]]:
        """(rows, float32 values) in order; runs begin at multiples of `multiple`."""
        count, width = self.shape
        step = max(_CHUNK // width // multiple, 1) * multiple if self.device.type != "meta" else count
        for start in range(0, count, step):
            run = slice(start, min(start + step, count))
            values = self._weight[run].float()
            yield run, values if self._divisor is None else values / self._divisor

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def largest(self) -> torch.Tensor:
        """float32 []: the largest magnitude of all."""
        return torch.stack([values.abs().amax() for _, values in self]).amax()


def quantise(format: str, weight: torch.Tensor, *, group: int = 256, divisor: torch.Tensor | None = None) -> Tensors:
    """The stored tensors of `weight` [N, K] in `format`, one of FORMATS. Raises ValueError for another one.

    `group`: columns that int8_convrot rotates together at most; the largest power of 4 that divides K is used.
    `divisor` [K]: what the input will be multiplied by (AWQ): the columns are divided by it first.
    """
    if format not in FORMATS:
        raise ValueError(f"quantise: expected one of {', '.join(FORMATS)}, got {format!r}. Choose one of these.")
    rows = _Rows(weight, divisor)
    if format == "int8_convrot":
        return _int8_convrot(rows, convrot_group(weight.shape[1], group))
    return FORMATS[format](rows)


def marker(**settings: object) -> torch.Tensor:
    """The `comfy_quant` tensor: JSON as bytes."""
    return torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


def convrot_group(columns: int, at_most: int = 256) -> int:
    """The largest power of 4 that divides `columns`, not above `at_most`."""
    group = 1
    while columns % (group * 4) == 0 and group * 4 <= at_most:
        group *= 4
    return group


def rotation(group: int) -> torch.Tensor:
    """float32 [group, group], symmetric and its own inverse."""
    signs = torch.tensor(_H4, dtype=torch.float32)
    matrix = torch.ones(1, 1)
    while len(matrix) < group:
        matrix = torch.kron(matrix, signs)
    return matrix / group**0.5


def _int8(rows: _Rows, per_row: bool, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Tensors:
    count = rows.shape[0]
    codes = rows.empty(*rows.shape, dtype=torch.int8)
    scale = rows.empty(count, 1, dtype=torch.float32) if per_row else rows.largest() / 127
    for run, values in rows:
        values = change(values)
        if per_row:
            scale[run] = values.abs().amax(dim=1, keepdim=True) / 127
        codes[run] = (values / _no_zero(scale[run] if per_row else scale)).round_().clamp_(-127, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scale, "comfy_quant": marker(format="int8_tensorwise")}


def _int8_convrot(rows: _Rows, group: int) -> Tensors:
    turn = rotation(group).to(rows.device)
    stored = _int8(rows, True, lambda values: (values.view(-1, group) @ turn).view(values.shape))
    note = marker(format="int8_tensorwise", convrot=True, convrot_groupsize=group)
    return {**stored, "comfy_quant": note}


def _fp8(rows: _Rows, name: str = "float8_e4m3fn", per_row: bool = False, full_precision: bool = True) -> Tensors:
    dtype, count = FP8[name], rows.shape[0]
    top = torch.finfo(dtype).max
    codes = rows.empty(*rows.shape, dtype=dtype)
    scale = rows.empty(count, 1, dtype=torch.float32) if per_row else rows.largest() / top
    for run, values in rows:
        if per_row:
            scale[run] = values.abs().amax(dim=1, keepdim=True) / top
        codes[run] = (values / _no_zero(scale[run] if per_row else scale)).clamp_(-top, top).to(dtype)
    settings = {"full_precision_matrix_mult": True} if full_precision else {}
    return {"weight": codes, "weight_scale": scale, "comfy_quant": marker(format=name, **settings)}


def _hf_block_fp8(rows: _Rows) -> Tensors:
    """Blocks of 128 x 128, those at the edges smaller; no marker."""
    (count, width), top = rows.shape, torch.finfo(torch.float8_e4m3fn).max
    codes = rows.empty(count, width, dtype=torch.float8_e4m3fn)
    scale = rows.empty(-(-count // HF_BLOCK), -(-width // HF_BLOCK), dtype=torch.bfloat16)
    for run, values in rows.runs(HF_BLOCK):
        down, across = -(-len(values) // HF_BLOCK), scale.shape[1]
        padding = (0, across * HF_BLOCK - width, 0, down * HF_BLOCK - len(values))
        blocks = torch.nn.functional.pad(values, padding).view(down, HF_BLOCK, across, HF_BLOCK)
        of_blocks = (blocks.abs().amax(dim=(1, 3)) / top).bfloat16()
        scale[run.start // HF_BLOCK : run.start // HF_BLOCK + down] = of_blocks
        blocks = (blocks / _no_zero(of_blocks.float())[:, None, :, None]).clamp_(-top, top)
        codes[run] = blocks.view(down * HF_BLOCK, -1)[: len(values), :width].to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}


def _nvfp4(rows: _Rows) -> Tensors:
    count, width = rows.shape
    if width % 16:
        raise ValueError(
            f"quantise: expected columns in whole blocks of 16 for nvfp4, got {width}. Choose int8 or fp8."
        )
    codes = rows.empty(count, width // 2, dtype=torch.uint8)
    padded = (-(-count // 128) * 128, -(-width // 64) * 4)
    scale = torch.zeros(padded, dtype=torch.uint8, device=rows.device).view(torch.float8_e4m3fn)
    scale_2 = rows.largest() / (448 * 6)
    for run, values in rows:
        blocks = values.view(len(values), -1, 16)
        of_blocks = (blocks.abs().amax(dim=-1) / 6 / _no_zero(scale_2)).clamp_(max=448).to(torch.float8_e4m3fn)
        scale[run, : width // 16] = of_blocks
        codes[run] = _e2m1_pairs(blocks / _no_zero(of_blocks.float() * scale_2).unsqueeze(-1)).view(len(values), -1)
    settings = marker(format="nvfp4", full_precision_matrix_mult=True)
    return {"weight": codes, "weight_scale": swizzled(scale), "weight_scale_2": scale_2, "comfy_quant": settings}


def _e2m1_pairs(values: torch.Tensor) -> torch.Tensor:
    """float32 [..., 2 k] in units of the scale (used up) -> uint8 [..., k], the even column in the high nibble."""
    sign = (values < 0).to(torch.uint8) << 3
    size = values.abs_()
    # 0 .5 1 1.5 2 | 3 4 | 6 lie on three lines: as codes they are 2 v, v + 2 and v / 2 + 4, whichever is least
    codes = torch.minimum(torch.minimum(size * 2, size + 2), size.mul_(0.5).add_(4)).round_().clamp_(max=7)
    codes = codes.to(torch.uint8) | sign
    return codes[..., 0::2] << 4 | codes[..., 1::2]


def swizzled(scale: torch.Tensor) -> torch.Tensor:
    """[N, C], multiples of 128 and 4 -> the same shape in the tiles of 128 x 4 that cuBLAS reads."""
    count, width = scale.shape
    tiles = scale.view(torch.uint8).view(count // 128, 4, 32, width // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(count, width).view(scale.dtype)


def _no_zero(scale: torch.Tensor) -> torch.Tensor:
    """1 where a whole block is zero: its codes are then zero."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


FORMATS: dict[str, Callable[[_Rows], Tensors]] = {
    "nvfp4": _nvfp4,
    "int8_convrot": partial(_int8_convrot, group=256),
    "int8_row": partial(_int8, per_row=True),
    "int8_tensor": partial(_int8, per_row=False),
    "fp8": _fp8,
    "fp8_e5m2": partial(_fp8, name="float8_e5m2", full_precision=False),
    "fp8_row": partial(_fp8, per_row=True),
    "hf_block_fp8": _hf_block_fp8,
}
