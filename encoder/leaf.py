"""The leaf: one weight and bias, lent to the layer's forward on the device of its input, wherever they happen to be.

Contract: `with leaf.borrow(x) as (weight, bias)` is the only device code of the encoder. A host injects its own `Leaf`
through `ops`; any class with `weight`, `bias` and `borrow` will do, and then packed weights are uint8 parameters of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import nn

from .packing import Packing, Parts, join

CPU = torch.device("cpu")
BorrowedPair = tuple["torch.Tensor | Parts", "torch.Tensor | None"]


class Rest(Protocol):
    """Where a weight lies while its parameter is a placeholder; see checkpoint/rest.py.

    held: the parts are in memory or mapped, so that having them costs nothing.
    """

    held: bool

    def parts(self) -> Parts: ...

    def row_parts(self, ids: torch.Tensor) -> Parts: ...


class Leaf(nn.Module):
    """One `weight` and an optional `bias`, both without gradient.

    Moving away from the CPU keeps the CPU tensors (usually a view of the mapped checkpoint); moving back restores them
    instead of copying: a copy of a mapped 51 GB file would take 51 GB of private memory.

    A weight that is packed, or read from its file whenever it is needed, has a `rest`: on the CPU the parameter is then
    a placeholder of the right size, and on a device it is what was moved there (packed: one uint8 blob).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.at_rest: dict[str, torch.Tensor] = {}
        self.rest: Rest | None = None
        self.packing: Packing | None = None
        self.staged: dict[torch.device, Parts] = {}  # fetched ahead of use, see pager.py

    @contextmanager
    def borrow(self, x: torch.Tensor) -> Generator[BorrowedPair, None, None]:
        """Yield (weight, bias) on `x.device`, as stored; bias is None where the layer has none."""
        bias = self.bias
        yield self.weight_on(x.device), None if bias is None else bias.to(x.device)

    def borrow_long(self, x: torch.Tensor) -> AbstractContextManager[BorrowedPair]:
        """As `borrow`, while other leaves are borrowed too."""
        return self.borrow(x)

    def weight_on(self, device: torch.device) -> torch.Tensor | Parts:
        """The weight as stored: the parameter, or what rests while that is a placeholder."""
        if not self.weight.is_meta or self.rest is None:
            return self.weight.to(device)
        parts = self.staged.get(device) or {name: part.to(device) for name, part in self.rest.parts().items()}
        return parts["weight"] if self.packing is None else parts

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True):
        for name, param in list(self._parameters.items()):
            if param is not None:
                tensor = param.data
                moved = self._moved(name, tensor, fn)
                if moved is not tensor:
                    self._parameters[name] = nn.Parameter(moved, requires_grad=False)
        return self

    def _moved(self, name: str, tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if name == "weight" and self.rest is not None:
            return self._moved_from_rest(tensor, fn(torch.empty(0, dtype=torch.uint8)).device)
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

    def _moved_from_rest(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """On the CPU nothing is held but the placeholder: leaving a device drops the copy there."""
        if device.type in ("cpu", "meta"):
            return tensor if tensor.is_meta else torch.empty_like(tensor, device="meta")
        if tensor.device == device:
            return tensor
        parts = self.rest.parts()
        return parts["weight"].to(device) if self.packing is None else join(self.packing, parts, device)


class PlainOps:
    """The default `ops`: leaves that hold their own parameters, without a host."""

    Leaf = Leaf
