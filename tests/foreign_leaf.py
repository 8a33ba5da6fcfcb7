"""Leaves that know nothing of the encoder: the least that a host's `ops` may supply."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn


class ForeignLeaf(nn.Module):
    """The least that `ops` may supply; counts borrowing and lends copies, so that nothing else can be used."""

    borrowed: list[int]

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), None
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)

    @contextmanager
    def borrow(self, x: torch.Tensor):
        self.borrowed.append(id(self))
        kept = self.weight, self.bias
        lent = [None if p is None else p.detach().clone() for p in kept]
        self.weight, self.bias = None, None
        try:
            yield tuple(lent)
        finally:
            self.weight, self.bias = kept
            for tensor in lent:
                if tensor is not None:
                    # using it after the loan spoils the result
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 255)


class PlainAttributes(ForeignLeaf):
    """Keeps what it was given as attributes, not as parameters."""

    def __init__(self, weight, bias=None):
        nn.Module.__init__(self)
        self.weight, self.bias = weight, bias


class ForeignOps:
    def __init__(self, leaf: type):
        self.Leaf = type("Recording", (leaf,), {"borrowed": []})
