"""A CPU that stands in for a device of its own, so that loading by budgets can be seen where there is none.

Contract: within `stand_in_device()`, what ComfyUI's patcher loads becomes a copy in memory of its own and is dropped
when it is offloaded; what is offloaded is copied for each use, and resting weights are fetched a layer ahead by the
pager. Loaded and offloaded weights thus go the two ways that they go on a GPU, and private memory is what the device
would hold. Without this, a CPU has one memory: loading moves nothing. `comfy` must be importable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from pack import h3te_module

CPU = torch.device("cpu")


@contextmanager
def stand_in_device() -> Iterator[None]:
    import comfy.model_patcher

    leaf, pager, host = (h3te_module(name) for name in ("encoder.leaf", "encoder.pager", "nodes.host.leaf"))
    moves = _Moves(comfy.model_patcher.ModelPatcher.load, leaf.Leaf._moved)
    patched = (
        (comfy.model_patcher.ModelPatcher, "load", lambda *args, **options: moves.load(*args, **options)),
        (leaf.Leaf, "_moved", lambda *args: moves.moved(*args)),
        (host.HostLeaf, "borrow", _copying(host.HostLeaf.borrow)),
        (pager, "_is_fetched", lambda module, device: _rests(module, leaf.Leaf)),
        (pager.Pager, "_fetch", _fetch),
    )
    with ExitStack() as stack:
        for owner, name, replacement in patched:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


class _Moves:
    """Tells loading, which copies, from offloading, which drops the copy."""

    def __init__(self, load, moved):
        self._load, self._moved, self._loading = load, moved, False
        self._copies: dict[tuple[int, str], int] = {}  # (leaf, parameter) -> where its copy lies

    def load(self, *args, **options):
        self._loading = True
        try:
            return self._load(*args, **options)
        finally:
            self._loading = False

    def moved(self, leaf, name: str, tensor: torch.Tensor, fn) -> torch.Tensor:
        if fn(torch.empty(0, dtype=tensor.dtype)).device != CPU:
            return self._moved(leaf, name, tensor, fn)
        if name == "weight" and leaf.rest is not None:
            return self._from_rest(leaf, tensor)
        return self._copied(leaf, name, tensor) if self._loading else self._dropped(leaf, name, tensor)

    def _from_rest(self, leaf, tensor: torch.Tensor) -> torch.Tensor:
        if not self._loading:
            return tensor if tensor.is_meta else torch.empty_like(tensor, device="meta")
        if not tensor.is_meta:
            return tensor
        parts = leaf.rest.parts()
        return parts["weight"].clone() if leaf.packing is None else _join(leaf.packing, parts)

    def _copied(self, leaf, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in leaf.at_rest or tensor.is_meta:
            return tensor
        leaf.at_rest[name], copy = tensor, tensor.clone()
        self._copies[id(leaf), name] = copy.data_ptr()
        return copy

    def _dropped(self, leaf, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What the patcher has put back itself (a weight without its LoRA) stays."""
        rested, copy = leaf.at_rest.pop(name, tensor), self._copies.pop((id(leaf), name), None)
        return rested if tensor.data_ptr() == copy else tensor


def _join(packing, parts) -> torch.Tensor:
    return h3te_module("encoder.packing").join(packing, parts, CPU)


def _rests(module: torch.nn.Module, leaf: type) -> bool:
    return isinstance(module, leaf) and module.rest is not None and module.weight.is_meta


def _fetch(pager, index: int) -> list:
    """Copies of what is held; what is read from a file is a copy already."""
    found = [(leaf.rest.held, leaf.rest.parts()) for leaf in pager._pages[index]]
    return pager._copies.fetch(index, [_copy(parts) if held else parts for held, parts in found])


def _copying(borrow):
    @contextmanager
    def copied(leaf, x: torch.Tensor) -> Iterator[tuple]:
        with borrow(leaf, x) as (weight, bias):
            if getattr(leaf, "comfy_patched_weights", False):
                yield weight, bias
            else:
                yield weight if x.device in leaf.staged else _copy(weight), _copy(bias)

    return copied


def _copy(lent):
    if isinstance(lent, dict):
        return {name: part.clone() for name, part in lent.items()}
    return lent if lent is None else lent.clone()
