"""Checks that an encoder runs right however much of it ComfyUI's patcher has loaded. Each raises when it does not.

Contract: `check_budgets` compares encodes at budgets of BUDGETS, in bytes and bits, while whatever is offloaded is
withheld; `check_one_device` runs one on `meta`, where no operation may mix devices and every leaf must meet its input
there; `check_leaves` is about structure alone. tests/test_partial_checks.py shows that each of them can fail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .one_device import CPU, META, OneDevice
from .packed_host import loaded_leaves

BUDGETS = (0, 0.1, 0.25, 0.5, 0.9, 1)
PAGER_THREAD = "weights"


def encode(clip, presentation, device: torch.device = CPU) -> torch.Tensor:
    return clip.encoder.encode_presentation(presentation, device=device).hidden


def check_budgets(comfy, clip, expected: Mapping, budgets=BUDGETS) -> None:
    """expected: presentation -> hidden states. budgets: shares of the weights."""
    size = clip.patcher.model_size()
    for share in budgets:
        clip.patcher.partially_load(CPU, int(share * size))
        try:
            resident = sum(comfy.model_management.module_size(module) for module in _loaded_modules(clip))
            assert resident == clip.patcher.loaded_size() <= share * size, share
            with withheld(clip):
                for presentation, hidden in expected.items():
                    assert torch.equal(encode(clip, presentation), hidden), share
        finally:
            clip.patcher.detach()
        assert not loaded_leaves(clip)


def check_one_device(clip, presentation, share: float) -> set[str]:
    """Encode on `meta` with that share loaded; the names of the modules that were called."""
    patcher = clip.patcher
    patcher.load_device = META
    patcher.partially_load(META, int(share * patcher.model_size()))
    try:
        with inputs_seen(clip) as seen, OneDevice():
            assert encode(clip, presentation, META).device == META
    finally:
        patcher.detach()
        patcher.load_device = CPU
    elsewhere = sorted(name for name, devices in seen.items() if devices != {META})
    assert not elsewhere, f"inputs on another device: {elsewhere}"
    return set(seen)


def check_leaves(clip) -> None:
    """Every parameter is in a module that casts itself, and nothing is a buffer."""
    for name, module in clip.cond_stage_model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            assert getattr(module, "comfy_cast_weights", False), name
        assert not list(module.buffers(recurse=False)), name


@contextmanager
def inputs_seen(clip) -> Iterator[dict[str, set[torch.device]]]:
    """Forward hooks on every module with parameters: name -> devices of its inputs."""
    seen: dict[str, set[torch.device]] = {}
    handles = []
    for name, module in clip.cond_stage_model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):

            def hook(module, args, output, name=name):
                seen.setdefault(name, set()).update(t.device for t in tree_leaves(args) if isinstance(t, torch.Tensor))

            handles.append(module.register_forward_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def withheld(clip) -> Iterator[None]:
    """While the block runs, every byte of an offloaded weight reads 255 (NaN in any float) but for `borrow`, and so
    does what rests, but for the pager. What `borrow` lent goes bad when it ends."""
    with ExitStack() as stack:
        for module in clip.cond_stage_model.modules():
            if not getattr(module, "comfy_patched_weights", False):
                stack.enter_context(_withheld(module))
        yield


@contextmanager
def _withheld(module: nn.Module) -> Iterator[None]:
    real = {name: p for name, p in module._parameters.items() if p is not None and not p.is_meta}
    blank = {name: nn.Parameter(_spoiled(p.data), requires_grad=False) for name, p in real.items()}
    rest = _Guarded(module.rest) if getattr(module, "rest", None) is not None else None
    module._parameters.update(blank)
    if hasattr(module, "borrow"):
        module.borrow = _lending(module, module.borrow, real, blank, rest)
        module.rest = rest
    try:
        yield
    finally:
        module._parameters.update(real)
        if hasattr(module, "borrow"):
            del module.borrow
            module.rest = rest and rest.real


def _lending(module: nn.Module, borrow, real: dict, blank: dict, rest: _Guarded | None):
    """The real ones are there while `borrow` takes them, not while the layer computes with what it was lent."""

    @contextmanager
    def lent(x: torch.Tensor) -> Iterator[tuple]:
        with ExitStack() as stack:
            with _open(module, real, blank, rest):
                copies = tuple(_copy(part) for part in stack.enter_context(borrow(x)))
            try:
                yield copies
            finally:
                for tensor in tree_leaves(copies):
                    if tensor is not None:
                        _fill(tensor)

    return lent


@contextmanager
def _open(module: nn.Module, real: dict, blank: dict, rest: _Guarded | None) -> Iterator[None]:
    module._parameters.update(real)
    if rest is not None:
        rest.open = True
    try:
        yield
    finally:
        module._parameters.update(blank)
        if rest is not None:
            rest.open = False


class _Guarded:
    """A `Rest` that is read only within `borrow` and by the pager; others get bytes of 255."""

    def __init__(self, real):
        self.real, self.held, self.open = real, real.held, False

    def parts(self):
        parts = self.real.parts()
        if self.open or threading.current_thread().name.startswith(PAGER_THREAD):
            return parts
        return {name: _spoiled(part) for name, part in parts.items()}


def _copy(lent):
    if isinstance(lent, dict):
        return {name: part.clone(memory_format=torch.contiguous_format) for name, part in lent.items()}
    return lent if lent is None else lent.clone(memory_format=torch.contiguous_format)


def _spoiled(tensor: torch.Tensor) -> torch.Tensor:
    return _fill(torch.empty_like(tensor, memory_format=torch.contiguous_format))


def _fill(tensor: torch.Tensor) -> torch.Tensor:
    tensor.detach().reshape(-1).view(torch.uint8).fill_(255)
    return tensor


def _loaded_modules(clip) -> list[nn.Module]:
    return [m for m in clip.cond_stage_model.modules() if getattr(m, "comfy_patched_weights", False)]
