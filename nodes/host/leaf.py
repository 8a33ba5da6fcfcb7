"""The leaf module that ComfyUI's model patcher manages: it casts itself to the device of its input and carries LoRA.

Contract: `Leaf` of encoder/leaf.py with `borrow` going through `comfy.ops.cast_bias_weight`, which every release
offers. ComfyUI recognises such a module by `comfy_cast_weights`: one that does not fit stays where it rests and is
cast per call, with the patches in `weight_function` and `bias_function` applied on the way. A weight that rests
(packed, or read from its file) is no tensor that ComfyUI could cast or patch: it is lent by our own leaf, and patches
are applied in float32 to the matrix that it stands for. Stop is heard whenever a weight is lent: a layer of a long
prompt on a CPU takes a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_patcher
import comfy.ops
import torch

from ...encoder.leaf import BorrowedPair, Leaf
from .placing import watching
from .stop import heed_stop


class HostLeaf(Leaf):
    comfy_cast_weights = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__(weight, bias)
        # per instance: the patcher appends to these lists in place
        self.weight_function: list = []
        self.bias_function: list = []
        self.resting_function: list = []  # patches of a resting weight that is loaded; see patcher.py

    def _apply(self, fn, recurse: bool = True):
        watch, before = watching(), dict(self._parameters)
        super()._apply(fn, recurse)
        for name, parameter in self._parameters.items() if watch else ():
            if parameter is not before[name]:
                watch.moved(parameter)
        return self

    @contextmanager
    def borrow(self, x: torch.Tensor) -> Iterator[BorrowedPair]:
        heed_stop()
        if self.rest is not None:
            yield self._patched_weight(x), self._patched_bias(x)
            return
        # The third item is a stream on older releases, an opaque value on newer ones: hand it back as it came.
        cast = comfy.ops.cast_bias_weight(
            self, dtype=self.weight.dtype, bias_dtype=x.dtype, device=x.device, offloadable=True
        )
        try:
            yield cast[0], cast[1]
        finally:
            comfy.ops.uncast_bias_weight(self, *cast)

    @contextmanager
    def borrow_long(self, x: torch.Tensor) -> Iterator[BorrowedPair]:
        """What ComfyUI casts on its way to a device is copied: newer releases cast into a buffer that the next casts
        write over."""
        if self.rest is not None or self.weight.device == x.device:
            with self.borrow(x) as pair:
                yield pair
            return
        with self.borrow(x) as pair:
            pair = tuple(None if lent is None else lent.clone() for lent in pair)
        yield pair

    def _patched_weight(self, x: torch.Tensor):
        lent = self.weight_on(x.device)
        # offloaded, the patcher's own functions carry the patches; loaded, they can only be what wraps a patched weight
        offloaded = any(isinstance(function, comfy.model_patcher.LowVramPatch) for function in self.weight_function)
        functions = self.weight_function if offloaded else [*self.resting_function, *self.weight_function]
        if not functions:
            return lent
        matrix = self.matrix(lent, torch.float32)
        if self.input_scale is not None:  # patches belong to the product of both
            matrix.mul_(self.input_scale.to(device=x.device, dtype=torch.float32))
        elif matrix is lent:
            matrix = matrix.clone()  # patches are added in place
        for function in functions:
            matrix = function(matrix)
        return matrix.to(x.dtype)

    def _patched_bias(self, x: torch.Tensor) -> torch.Tensor | None:
        if self.bias is None:
            return None
        bias = self.bias.to(device=x.device, dtype=x.dtype, copy=bool(self.bias_function))
        for function in self.bias_function:
            bias = function(bias)
        return bias


class HostOps:
    """The `ops` that builds an encoder for ComfyUI."""

    Leaf = HostLeaf
