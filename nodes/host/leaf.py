"""The leaf module that ComfyUI's model patcher manages: it casts itself to the device of its input and carries LoRA.

Contract: `Leaf` of encoder/layers.py with `borrow` going through `comfy.ops.cast_bias_weight`, which every release
offers. ComfyUI recognises such a module by `comfy_cast_weights`: one that does not fit stays where it rests and is
cast per call, with the patches in `weight_function` and `bias_function` applied on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import comfy.ops
import torch

from ...encoder.leaf import BorrowedPair, Leaf


class HostLeaf(Leaf):
    comfy_cast_weights = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__(weight, bias)
        # per instance: the patcher appends to these lists in place
        self.weight_function: list = []
        self.bias_function: list = []

    @contextmanager
    def borrow(self, x: torch.Tensor) -> Iterator[BorrowedPair]:
        # The third item is a stream on older releases, an opaque value on newer ones: hand it back as it came.
        cast = comfy.ops.cast_bias_weight(
            self, dtype=self.weight.dtype, bias_dtype=x.dtype, device=x.device, offloadable=True
        )
        try:
            yield cast[0], cast[1]
        finally:
            comfy.ops.uncast_bias_weight(self, *cast)


class HostOps:
    """The `ops` that builds an encoder for ComfyUI."""

    Leaf = HostLeaf
