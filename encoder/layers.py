"""The leaf modules: each owns one weight (and bias) and computes with it wherever it happens to be.

Contract: all numerics of the encoder happen in `forward` here; the only device code is `with self.borrow(x) as (weight,
bias)`, which yields both on `x.device` in the dtype they are stored in. A host injects its own `Leaf` base class
through `ops` (ComfyUI's casting and LoRA live there). Rounding follows the released model: RMSNorm reduces in float32,
casts, then multiplies by the weight; the position table is interpolated in float32 and cast by the caller when it is
added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

BorrowedPair = tuple[torch.Tensor, "torch.Tensor | None"]


class Leaf(nn.Module):
    """One `weight` and an optional `bias`, both without gradient.

    Moving away from the CPU keeps the CPU tensors (usually a view of the mapped checkpoint); moving back restores them
    instead of copying: a copy of a mapped 51 GB file would take 51 GB of private memory.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.at_rest: dict[str, torch.Tensor] = {}

    @contextmanager
    def borrow(self, x: torch.Tensor) -> Iterator[BorrowedPair]:
        """Yield (weight, bias) on `x.device`, in stored dtype; bias is None where the layer has none."""
        bias = self.bias
        yield self.weight.to(x.device), None if bias is None else bias.to(x.device)

    def _apply(self, fn, recurse: bool = True):
        for name, param in list(self._parameters.items()):
            if param is not None:
                tensor = param.data
                moved = self._moved(name, tensor, fn)
                if moved is not tensor:
                    self._parameters[name] = nn.Parameter(moved, requires_grad=False)
        return self

    def _moved(self, name: str, tensor: torch.Tensor, fn) -> torch.Tensor:
        if tensor.is_meta and name not in self.at_rest:  # a placeholder has nothing to move: its weight comes later
            return tensor
        probe = fn(torch.empty(0, dtype=tensor.dtype))
        if probe.dtype != tensor.dtype:  # a change of dtype is a new tensor: nothing at rest answers for it
            rested = self.at_rest.pop(name, tensor)
            return fn(rested if tensor.is_meta else tensor)
        if probe.device == tensor.device:
            return tensor
        if probe.device.type == "cpu" and name in self.at_rest:
            return self.at_rest[name]
        if tensor.device.type == "cpu":
            self.at_rest[name] = tensor
        return fn(tensor)


class _LinearForward:
    """y = x W^T + b; W [out, in]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.borrow(x) as (weight, bias):
            return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class _PatchProjectionForward:
    """The released patch convolution (kernel = stride = patch) as one matrix product; W [out, C, T, P, P], x [N,
    C*T*P*P].

    It differs from Conv3d in the last bits (relative L2 6e-7 in float32, 5e-5 in bf16).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.borrow(x) as (weight, bias):
            return F.linear(x, weight.flatten(1).to(x.dtype), bias.to(x.dtype))


class _RMSNormForward:
    """x / rms(x) in float32, cast to x.dtype, then times weight [D]."""

    eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.borrow(x) as (weight, _):
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
            return weight.to(x.dtype) * h.to(x.dtype)


class _LayerNormForward:
    """LayerNorm over the last axis, eps 1e-6, weight and bias [D]."""

    eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.borrow(x) as (weight, bias):
            return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), self.eps)


class _PositionTableForward:
    """Learned positions [side * side, D] resampled at 4 taps per patch, summed in float32.

    x: any tensor on the compute device; taps int64 [N, 4], weights float32 [N, 4] -> float32 [N, D].
    """

    def forward(self, x: torch.Tensor, taps: torch.Tensor, tap_weights: torch.Tensor) -> torch.Tensor:
        with self.borrow(x) as (table, _):
            return (table[taps.to(x.device)] * tap_weights.to(x.device)[:, :, None]).sum(1)


class PlainOps:
    """The default `ops`: leaves that hold their own parameters, without a host."""

    Leaf = Leaf


@lru_cache(maxsize=8)
def layer_classes(leaf: type) -> SimpleNamespace:
    """The layer classes on top of an injected `Leaf` class: Linear, PatchProjection, RMSNorm, LayerNorm,
    PositionTable."""
    forwards = (_LinearForward, _PatchProjectionForward, _RMSNormForward, _LayerNormForward, _PositionTableForward)
    return SimpleNamespace(**{f.__name__[1:-7]: type(f.__name__[1:-7], (f, leaf), {}) for f in forwards})


class Layers:
    """Builds weightless (meta) layers of given sizes on one `ops`; the model code asks it for every leaf."""

    def __init__(self, ops, dtype: torch.dtype):
        self.classes = layer_classes(ops.Leaf)
        self.dtype = dtype

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device="meta")

    def linear(self, in_features: int, out_features: int, bias: bool = False) -> nn.Module:
        return self.classes.Linear(self._empty(out_features, in_features), self._empty(out_features) if bias else None)

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


class TokenTable:
    """The token embedding [V, D], kept outside the module tree: only the rows of a request are looked up, on the CPU.

    Inside the tree ComfyUI would reserve several times its 1.5 GB while loading partially.
    """

    def __init__(self, vocab_size: int, width: int, dtype: torch.dtype):
        self.weight = torch.empty((vocab_size, width), dtype=dtype, device="meta")

    def __call__(self, ids: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """ids int64 [S] -> embeddings [S, D] on `device`."""
        return F.embedding(ids.to(self.weight.device), self.weight).to(device=device, dtype=dtype)
