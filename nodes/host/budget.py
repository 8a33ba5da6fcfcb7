"""The memory plan of a request, or of several in one pass, beside what the device has: shown before the load, warned
about, refused if hopeless.

Contract: `budget_of_request(patcher, *batches)` -> Budget, part of what a node tells about a request.
Free memory is ComfyUI's own figure; what its models hold there can be freed, and counts as available. Refused is only
what no arrangement can compute: activations far larger than everything that the device and what it can spill into
hold. Less than that is a warning: the estimate may be too high.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import comfy.model_management
import psutil
import torch

from ...encoder.leaf import Leaf
from .memory import MemoryPlan, plan_requests, weights_in_use
from .request_cache import RequestCache
from .tokens import TokenBatch

MARGIN = 1.3  # how far above what is really needed a plan may be (tests/test_memory_plan.py)
WHO = "MiniMax H3 text encoder (H3TE)"


@dataclass(frozen=True)
class Budget:
    """All in bytes. weights: those that ComfyUI places; layer: the largest; available: free and what can be freed;
    limit: all that the device could ever lend."""

    plan: MemoryPlan
    device: torch.device
    weights: int
    layer: int
    free: int
    available: int
    limit: int
    packed: bool

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def offloaded(self) -> int:
        """About so much of the weights will not be on the device. ComfyUI decides; it keeps a reserve of its own."""
        if self.on_cpu:
            return 0
        if _keeps_nothing():
            return self.weights
        return min(self.weights, max(0, self.weights - (self.available - _reserved(self.plan.activations))))

    @property
    def is_tight(self) -> bool:
        return self.plan.bare + self.layer > self.available

    def line(self) -> str:
        """For people, before the load."""
        where = "of RAM free" if self.on_cpu else f"free on {self.device}"
        other = self.available - self.free
        freed = f" (and {_gb(other)} in other models)" if other else ""
        numbers = f"weights {_gb(self.weights)}, activations {_gb(self.plan.activations)}; {_gb(self.free)} {where}"
        return f"memory plan: {numbers}{freed}; {self._outcome()}"

    def _outcome(self) -> str:
        if self.on_cpu:
            return "weights are used where they rest"
        return f"about {_gb(self.offloaded)} of the weights will be offloaded" if self.offloaded else "all weights fit"

    def warning(self) -> str | None:
        """One line when it will hardly fit."""
        if not self.is_tight:
            return None
        needed = f"{_gb(self.plan.bare)} of activations and {_gb(self.layer)} for a layer"
        return f"memory is short: {needed}, {_gb(self.available)} available. If it fails: {self.advice()}"

    def check(self) -> None:
        """Raise RuntimeError for what cannot fit in any way, even if the plan is too high by its whole margin."""
        if self.plan.bare > MARGIN * self.limit:
            raise RuntimeError(
                f"{WHO}: expected a request that fits into {self.device} ({_gb(self.limit)} in all), got "
                f"{self._size()} with {_gb(self.plan.bare)} of activations. {_sentence(self.advice())}"
            )

    def _size(self) -> str:
        prompts = self.plan.prompts
        return f"{'one' if prompts == 1 else f'{prompts} prompts'} of {self.plan.tokens} tokens"

    def advice(self) -> str:
        """What would make it fit, the most effective first."""
        ways = ["give fewer prompts at once" if self.plan.prompts > 1 else ""]
        ways += ["use smaller or fewer references (ref_image_size match)" if any(self.plan.patches) else ""]
        ways += ["" if any(self.plan.patches) or self.plan.tokens < 2000 else "shorten the prompt"]
        ways += ["" if self.packed else "load a packed file (nvfp4_awq or int8_convrot)"]
        ways += ["choose reader stream in the options"] if self.on_cpu else ["choose device cpu in the loader"]
        return ", or ".join(way for way in ways if way)


def budget_of_request(patcher, *batches: TokenBatch, mapped: bool = True, cache: RequestCache | None = None) -> Budget:
    """Of all batches together, in one pass. mapped: weights are mapped or in memory. Before that, it is the least that
    the request can do with: nothing for weights in use, and each reference seen on its own. cache: how pictures are
    seen with it; what it keeps stays in RAM and counts where that is the device."""
    encoder = patcher.model.encoder
    presentations, tokens = [b.presentation for b in batches], [len(b.sequence) for b in batches]

    def plan(cast: int, vision_packing: str = "official") -> MemoryPlan:
        counts = encoder.config, presentations, tokens
        return plan_requests(*counts, encoder.dtype, cast, vision_packing, patcher.load_device)

    def in_use(resident: bool) -> int:
        tree, device, patches = patcher.model, patcher.load_device, patcher.patches
        return weights_in_use(tree, device, patches, resident, lend_once=len(batches) > 1)

    if not mapped:
        return _budget(patcher, plan(0, "per_reference"))
    packing, kept = ("official", 0) if cache is None else (cache.vision_packing, cache.kept_bytes(batches))
    budget = _budget(patcher, plan(in_use(resident=True) + kept, packing))
    # layers fetched ahead count only where some will have to be
    return budget if _fits_whole(budget) else _budget(patcher, plan(in_use(resident=False) + kept, packing))


def _fits_whole(budget: Budget) -> bool:
    """Whether ComfyUI will have all weights on the device beside the activations; it counts a tenth more itself."""
    needed = budget.weights * 1.1 + _reserved(budget.plan.activations)
    return needed <= budget.available and not _keeps_nothing()


def _keeps_nothing() -> bool:
    """ComfyUI was started with --novram."""
    return comfy.model_management.vram_state == comfy.model_management.VRAMState.NO_VRAM


def _budget(patcher, plan: MemoryPlan) -> Budget:
    device = patcher.load_device
    free = int(comfy.model_management.get_free_memory(device))
    layers = patcher.model.encoder.model.language_model.layers
    layer = max(sum(_stored(leaf) for leaf in layer.modules() if isinstance(leaf, Leaf)) for layer in layers)
    available, packed = free + _freeable(device), bool(patcher.model.packings)
    return Budget(plan, device, patcher.model_size(), layer, free, available, limit_of(device), packed)


def limit_of(device: torch.device) -> int:
    """Memory of the device and of what the system lets it spill into: a swap file, on Windows the RAM."""
    total = int(comfy.model_management.get_total_memory(device))
    if device.type in ("cpu", "mps"):
        return total + psutil.swap_memory().total
    return total + (psutil.virtual_memory().total if platform.system() == "Windows" else 0)


def _freeable(device: torch.device) -> int:
    """What ComfyUI's models hold on an accelerator, our own included: all of it can make room."""
    if device.type == "cpu":
        return 0
    models = (loaded.model for loaded in comfy.model_management.current_loaded_models)
    return sum(int(model.loaded_size()) for model in models if model is not None and model.load_device == device)


def _reserved(activations: int) -> int:
    """What ComfyUI leaves free when it loads with so much `memory_required`."""
    management = comfy.model_management
    return int(max(management.minimum_inference_memory(), activations + management.extra_reserved_memory()))


def _stored(leaf: Leaf) -> int:
    return sum(p.numel() * p.element_size() for p in leaf.parameters(recurse=False))


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
