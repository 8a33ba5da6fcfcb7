"""Calls of a module with some tensors elsewhere: a stand-in that lives for one call, so that nothing is kept anywhere.

Contract: `with lent(module, children=..., tensors=...) as stand_in` yields an object of the module's own class with the
module's own state, but those children and tensors. The module is not touched, so two threads with two devices cannot
meet; hooks, submodules and weights are the module's. What a call notes on itself (a cache, a flag) is kept by the
module afterwards, as without the stand-in.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

_TABLES = ("_modules", "_parameters", "_buffers")
_ABSENT = object()


def stand_in(module: nn.Module, children: Mapping[str, nn.Module], tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A module of the same class and state with other children and tensors, for one call."""
    twin = object.__new__(type(module))
    state = vars(twin)
    state.update(vars(module))
    for table in _TABLES:
        state[table] = dict(state[table])
    state["_modules"].update(children)
    for name, tensor in tensors.items():
        holder = next((state[table] for table in _TABLES[1:] if name in state[table]), state)
        holder[name] = tensor
    return twin


@contextmanager
def lent(
    module: nn.Module, children: Mapping[str, nn.Module], tensors: Mapping[str, torch.Tensor]
) -> Generator[nn.Module, None, None]:
    """A stand-in whose new attributes are handed to the module when the call is over."""
    twin = stand_in(module, children, tensors)
    before = dict(vars(twin))
    try:
        yield twin
    finally:
        for name, value in vars(twin).items():
            if name not in _TABLES and before.get(name, _ABSENT) is not value:
                vars(module)[name] = value


def brought(module: nn.Module, name: str, device: torch.device) -> nn.Module | None:
    """A stand-in that has tensor `name` on `device`; None where it is there already, or where nothing can be brought.

    A tensor on the meta device that is no parameter of the module marks a leaf that brings its weight itself: the
    stand-in then only says where the result is wanted.
    """
    tensor = getattr(module, name, None)
    if not isinstance(tensor, torch.Tensor) or tensor.device == device:
        return None
    if not tensor.is_meta:
        return stand_in(module, {}, {name: tensor.to(device)})
    if name in module._parameters or name in module._buffers:
        return None
    return stand_in(module, {}, {name: torch.empty(0, dtype=tensor.dtype, device=device)})
