"""The leaf modules: each owns one weight (and bias) and computes with it wherever it happens to be.

Contract: all numerics of the encoder happen in `forward` here; the only device code is `with self.borrow(x) as (weight,
bias)`, which yields both on `x.device` in the dtype they are stored in; `lend` calls it, once for each use or once for
several (loans.py). A host injects its own `Leaf` base class
through `ops` (ComfyUI's casting and LoRA live there). A packed weight is lent as it is stored, one uint8 blob or its
named parts, and unpacked here, when it is used; a leaf that lends a floating matrix instead (with a LoRA in it) is
taken at its word. Rounding follows the released model: RMSNorm reduces in float32, casts, then multiplies by the
weight; the position table is interpolated in float32 and cast by the caller when it is added.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .leaf import CPU, Leaf, Rest
from .packing import Packing, Parts, join, split, unpack
from .parallel.group import ALONE, TensorParallel
from .row_blocks import row_blocks

POSITIONS_AT_ONCE = 1024  # the four taps of each are gathered in float32
COLUMN_BLOCKS = 4
# bytes, 983 tokens in bf16: with fewer rows oneDNN sums the product of a part in another order for some (94, 258)
SPLIT_FROM = 48 << 20


class Lent(NamedTuple):
    """A weight ready to compute with, its bias, and what the input is multiplied by first."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    input_scale: torch.Tensor | None


class _Layer:
    """What every layer is, on any `Leaf`: a weight that may be stored packed, and its place to be filled.

    `input_scale` [K], when given, multiplies the input of a linear before the product.
    """

    packing: Packing | None = None
    input_scale: torch.Tensor | None = None
    _loans: ExitStack | None = None
    _lent: Lent | None = None

    @contextmanager
    def lend(self, x: torch.Tensor, dtype: torch.dtype | None) -> Generator[Lent, None, None]:
        """Borrowed for x and unpacked: the weight in `dtype` (None: as stored, or float32 where it is packed), the bias
        in that of x."""
        if self._loans is None:
            with self.borrow(x) as (weight, bias):
                yield self._unpacked(weight, bias, x, dtype)
            return
        if self._lent is None:
            borrow = getattr(self, "borrow_long", self.borrow)  # a foreign leaf may not know of loans that last
            weight, bias = self._loans.enter_context(borrow(x.new_empty(0)))  # a loan must not hold on to the input
            self._lent = self._unpacked(weight, bias, x, dtype)
        yield self._lent

    def lend_until(self, loans: ExitStack) -> None:
        """Until `loans` closes, the weight is borrowed and unpacked once, at its first use."""
        loans.callback(self._end_loan)
        self._loans = loans

    def _end_loan(self) -> None:
        self._loans = self._lent = None

    def _unpacked(
        self, weight: torch.Tensor | Parts, bias: torch.Tensor | None, x: torch.Tensor, dtype: torch.dtype
    ) -> Lent:
        scale = None
        if self.input_scale is not None and self.is_packed(weight):
            scale = self.input_scale.to(device=x.device, dtype=x.dtype)
        if dtype is not None or self.is_packed(weight):
            weight = self.matrix(weight, dtype or torch.float32)
        return Lent(weight, None if bias is None else bias.to(x.dtype), scale)

    def announce(self, packing: Packing) -> None:
        """The weight will come packed: its placeholder has the packed size from now on."""
        self.assign("weight", torch.empty((packing.nbytes,), dtype=torch.uint8, device="meta"))
        self.packing = packing

    def store(self, rest: Rest, input_scale: torch.Tensor | None = None) -> None:
        """The weight lies at `rest` while it is not on a device; a foreign leaf gets it as a parameter."""
        self.input_scale = input_scale
        if isinstance(self, Leaf):
            self.rest = rest
        else:
            parts = rest.parts()
            self.weight = _frozen(parts["weight"] if self.packing is None else join(self.packing, parts, CPU))

    def assign(self, attribute: str, tensor: torch.Tensor) -> None:
        """A plain tensor for "weight" or "bias"; it is used as it is, not copied."""
        getattr(self, "at_rest", {}).pop(attribute, None)
        if attribute == "weight":
            self.packing = self.rest = self.input_scale = None
        setattr(self, attribute, _frozen(tensor))

    def rests(self, attribute: str) -> bool:
        """True when the tensor can be had although the parameter is a placeholder."""
        rest = getattr(self, "rest", None) if attribute == "weight" else None
        return rest is not None or attribute in getattr(self, "at_rest", {})

    def is_packed(self, weight: torch.Tensor | Parts) -> bool:
        """Whether a lent weight still has to be unpacked."""
        return self.packing is not None and not (isinstance(weight, torch.Tensor) and weight.is_floating_point())

    def matrix(self, weight: torch.Tensor | Parts, dtype: torch.dtype) -> torch.Tensor:
        """The lent weight as a matrix in `dtype`."""
        if not self.is_packed(weight):
            return weight.to(dtype)
        return unpack(self.packing, split(self.packing, weight) if isinstance(weight, torch.Tensor) else weight, dtype)


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


class _LinearForward(_Layer):
    """y = x W^T + b; W [out, in]. parallel: x and W are this rank's columns, and y is the sum over the ranks."""

    parallel: TensorParallel = ALONE

    def forward(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        consume: bool = False,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out: where y is put. consume: x is not needed any more, and may be overwritten. into [..., out]: is
        multiplied by y in place and returned; y is made in blocks of columns, and never there whole where that is
        large."""
        with self.lend(x, x.dtype) as lent:
            if lent.input_scale is not None:
                x = x.mul_(lent.input_scale) if consume else x * lent.input_scale
            if into is not None:
                return _multiplied(into, x, lent)
            return self.parallel.sum(_product(x, lent.weight, lent.bias, out))


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    """x W^T + b; with `out` the same kernels as F.linear runs, so the same bits."""
    if out is None or x.dim() != 2:
        return F.linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)


def _multiplied(into: torch.Tensor, x: torch.Tensor, lent: Lent) -> torch.Tensor:
    step = -(-len(lent.weight) // column_blocks(into.nbytes))
    made: torch.Tensor | None = None
    for start in range(0, len(lent.weight), step):
        rows = slice(start, start + step)
        bias, weight = None if lent.bias is None else lent.bias[rows], lent.weight[rows]
        made = _product(x, weight, bias, made if made is not None and made.shape[-1] == len(weight) else None)
        into[..., rows].mul_(made)
    return into


def is_own(module: nn.Module) -> bool:
    """Whether it is a layer of ours as it is: nobody exchanged it, wrapped its forward (LoRAs that go past the weight
    do) or looks at what goes in and out, so that it may be asked for more than y."""
    looked_at = module._forward_hooks or module._forward_pre_hooks
    return isinstance(module, _Layer) and "forward" not in module.__dict__ and not looked_at


def apply_into(module: nn.Module, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """module(x), a linear or a norm; in `out` where it is one that can."""
    return module(x) if out is None or not is_own(module) else module(x, out=out)


def column_blocks(nbytes: int) -> int:
    """In how many blocks a result of so many bytes is multiplied into another."""
    return COLUMN_BLOCKS if nbytes >= SPLIT_FROM else 1


class _PatchProjectionForward(_Layer):
    """The released patch convolution (kernel = stride = patch) as one matrix product; W [out, C, T, P, P], x [N,
    C*T*P*P].

    It differs from Conv3d in the last bits (relative L2 6e-7 in float32, 5e-5 in bf16).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lend(x, x.dtype) as lent:
            return F.linear(x, lent.weight.flatten(1), lent.bias)


class _RMSNormForward(_Layer):
    """x / rms(x) in float32, cast to x.dtype, then times weight [D]."""

    eps = 1e-6

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """out: where the result is put, which may be x itself."""
        with self.lend(x, x.dtype) as lent:
            out = torch.empty_like(x) if out is None else out
            for rows in row_blocks(x):
                h = x[rows].float()
                h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
                torch.mul(lent.weight, h.to(x.dtype), out=out[rows])
            return out


class _LayerNormForward(_Layer):
    """LayerNorm over the last axis, eps 1e-6, weight and bias [D]."""

    eps = 1e-6

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """out: where the result is put."""
        with self.lend(x, x.dtype) as lent:
            normed = (lent.weight.shape, lent.weight, lent.bias, self.eps)
            if out is None:
                return F.layer_norm(x, *normed)
            for rows in row_blocks(x):
                out[rows] = F.layer_norm(x[rows], *normed)
            return out


class _PositionTableForward(_Layer):
    """Learned positions [side * side, D] resampled at 4 taps per patch, summed in float32.

    x: any tensor on the compute device; taps int64 [N, 4], weights float32 [N, 4] -> float32 [N, D].
    """

    def forward(self, x: torch.Tensor, taps: torch.Tensor, tap_weights: torch.Tensor) -> torch.Tensor:
        taps, tap_weights = taps.to(x.device), tap_weights.to(x.device)
        with self.lend(x, None) as lent:
            out = torch.empty((len(taps), lent.weight.shape[1]), dtype=torch.float32, device=x.device)
            for start in range(0, len(taps), POSITIONS_AT_ONCE):
                rows = slice(start, start + POSITIONS_AT_ONCE)
                torch.sum(lent.weight[taps[rows]] * tap_weights[rows, :, None], 1, out=out[rows])
            return out


@lru_cache(maxsize=8)
def layer_classes(leaf: type) -> SimpleNamespace:
    """The layer classes on top of an injected `Leaf` class: Linear, PatchProjection, RMSNorm, LayerNorm,
    PositionTable."""
    forwards = (_LinearForward, _PatchProjectionForward, _RMSNormForward, _LayerNormForward, _PositionTableForward)
    return SimpleNamespace(**{f.__name__[1:-7]: type(f.__name__[1:-7], (f, leaf), {}) for f in forwards})


class Layers:
    """Builds weightless (meta) layers of given sizes on one `ops`; the model code asks it for every leaf, in the sizes
    of one rank of `parallel`."""

    def __init__(self, ops: Any, dtype: torch.dtype, parallel: TensorParallel = ALONE):
        self.classes = layer_classes(ops.Leaf)
        self.dtype, self.parallel = dtype, parallel

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device="meta")

    def linear(self, in_features: int, out_features: int, bias: bool = False, summed: bool = False) -> nn.Module:
        """summed: each rank has a part of the columns."""
        weight, own_bias = self._empty(out_features, in_features), self._empty(out_features) if bias else None
        linear = self.classes.Linear(weight, own_bias)
        if summed:
            linear.parallel = self.parallel
        return linear

    def patch_projection(self, out_features: int, *kernel: int) -> nn.Module:
        return self.classes.PatchProjection(self._empty(out_features, *kernel), self._empty(out_features))

    def rms_norm(self, width: int, eps: float) -> nn.Module:
        norm = self.classes.RMSNorm(self._empty(width))
        norm.eps = eps
        return norm

    def layer_norm(self, width: int) -> nn.Module:
        return self.classes.LayerNorm(self._empty(width), self._empty(width))

    def position_table(self, positions: int, width: int) -> nn.Module:
        return self.classes.PositionTable(self._empty(positions, width))
