"""ComfyUI's own kernels (comfy_kitchen) for packed weights: used where they give exactly our numbers.

Contract: `kernels_for(choice, device, packings)` -> kernels for `use_kernels`. "torch": none. "auto": those that
comfy_kitchen runs on a real backend of this device (CUDA, HIP, Triton; its plain torch path is no faster than ours) and
whose float32 output was bit for bit ours on a trial matrix as wide as the checkpoint's. "comfyui": the same, and a
RuntimeError that says why for any packed weight that stays without one. comfy_kitchen absent is usual on older ComfyUI.
The trial runs once per format, width and device.

Tested with comfy_kitchen's plain torch path on a CPU only: which of its CUDA, HIP and Triton kernels pass the trial was
never seen. One that rounds otherwise (the rotation of int8 convrot is likely to) is left alone by "auto".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import ModuleType

import torch

from ...encoder.packing import Packing, Parts, join, split
from ...encoder.packing.fp8 import Fp8
from ...encoder.packing.int8 import Int8
from ...encoder.packing.kernels import Kernel
from ...encoder.packing.nvfp4 import TILE_ROWS, Nvfp4

logger = logging.getLogger(__name__)

CHOICES = ("auto", "torch", "comfyui")
WHO = "MiniMax H3 Encoder Options (H3TE)"
REAL_BACKENDS = ("cuda", "hip", "triton")
_TRIAL_ROWS = 2 * TILE_ROWS + 32
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, ImportError, KeyError, IndexError)


@dataclass(frozen=True)
class _Candidate:
    """`arguments(packing, parts, start, stop)` of the function that comfy_kitchen knows as `name`."""

    packing: type[Packing]
    name: str
    serves: Callable[[Packing], bool]
    arguments: Callable[[Packing, Parts, int, int], dict]
    row_step: int = 1

    def rows(self, packing: Packing, parts: Parts, start: int, stop: int) -> torch.Tensor:
        arguments = self.arguments(packing, parts, start, stop)
        return _kitchen().registry.get_implementation(self.name, kwargs=arguments)(**arguments)


def _nvfp4(packing: Nvfp4, parts: Parts, start: int, stop: int) -> dict:
    scales = parts["weight_scale"].reshape(packing.parts["weight_scale"].shape)
    return {
        "qx": parts["weight"][start:stop],
        "per_tensor_scale": parts["weight_scale_2"],
        "block_scales": scales[start : -(-stop // TILE_ROWS) * TILE_ROWS],  # whole tiles: start is a multiple
        "output_type": torch.float32,
    }


def _fp8(packing: Fp8, parts: Parts, start: int, stop: int) -> dict:
    scale = parts[packing.scale_name].reshape(()).float()
    return {"x": parts["weight"][start:stop], "scale": scale, "output_type": torch.float32}


def _int8(packing: Int8, parts: Parts, start: int, stop: int) -> dict:
    scale = parts["weight_scale"]
    return {"q": parts["weight"][start:stop], "scale": scale[start:stop] if packing.per_row else scale}


def _convrot(packing: Int8, parts: Parts, start: int, stop: int) -> dict:
    return {**_int8(packing, parts, start, stop), "group_size": packing.group}


_CANDIDATES = (
    _Candidate(Nvfp4, "dequantize_nvfp4", lambda packing: True, _nvfp4, TILE_ROWS),
    _Candidate(Fp8, "dequantize_per_tensor_fp8", lambda packing: prod(packing.scale_shape) == 1, _fp8),
    _Candidate(Int8, "dequantize_int8_simple", lambda packing: not packing.group, _int8),
    _Candidate(Int8, "dequantize_int8_convrot_weight", lambda packing: packing.group > 0, _convrot),
)


def kernels_for(choice: str, device: torch.device, packings: Iterable[Packing]) -> tuple[Kernel, ...]:
    """packings: of the weights that will be unpacked on `device`. Raises RuntimeError for "comfyui" without a kernel
    for one of them."""
    if choice == "torch":
        return ()
    proven: dict[_Candidate, set[Packing]] = {}
    for trial in dict.fromkeys(_trial_of(packing) for packing in packings):
        candidate = next((c for c in _CANDIDATES if type(trial) is c.packing and c.serves(trial)), None)
        reason = f"comfy_kitchen has none for {trial.name}" if candidate is None else _refusal(candidate, trial, device)
        if reason is None:
            proven.setdefault(candidate, set()).add(trial)
        elif choice == "comfyui":
            raise RuntimeError(
                f"{WHO}: expected ComfyUI's own kernels for {trial.name} weights of {trial.shape[1]} columns on "
                f"{device}, got none: {reason}. Set unpack to auto."
            )
    return tuple(_kernel(candidate, trials, device) for candidate, trials in proven.items())


def _kernel(candidate: _Candidate, trials: set[Packing], device: torch.device) -> Kernel:
    def serves(packing: Packing) -> bool:
        return _trial_of(packing) in trials

    return Kernel(candidate.packing, device.type, candidate.rows, serves, candidate.row_step)


@lru_cache(maxsize=1024)
def _trial_of(packing: Packing) -> Packing:
    """The same packing of a matrix with few rows: a kernel may choose its way by the width."""
    changes = {"shape": (_TRIAL_ROWS, *packing.shape[1:])}
    if isinstance(packing, Fp8) and prod(packing.scale_shape) != 1:
        changes["scale_shape"] = (_TRIAL_ROWS, *packing.scale_shape[1:])
    return replace(packing, **changes)


@lru_cache(maxsize=256)
def _refusal(candidate: _Candidate, trial: Packing, device: torch.device) -> str | None:
    """Why comfy_kitchen does not unpack such weights here; None when it does, to the last bit."""
    try:
        kitchen = _kitchen()
    except ImportError as error:
        return f"the Python package comfy_kitchen, which newer ComfyUI brings, is absent ({error})"
    parts = split(trial, join(trial, _trial_parts(trial), device))  # where they lie in a loaded weight
    try:
        arguments = candidate.arguments(trial, parts, 0, TILE_ROWS)
        backend = kitchen.registry.get_capable_backend(candidate.name, arguments)
        if backend not in REAL_BACKENDS:
            return f"comfy_kitchen has only its {backend} path for {candidate.name} there, which is no faster than ours"
        chunks = ((0, TILE_ROWS), (TILE_ROWS, trial.shape[0]))
        theirs = torch.cat([candidate.rows(trial, parts, start, stop) for start, stop in chunks])
    except _FAILURES as error:
        return f"comfy_kitchen is too old, or fails there ({type(error).__name__}: {error})"
    if not torch.equal(theirs, trial.rows(parts, 0, trial.shape[0])):
        return f"comfy_kitchen's {backend} kernel {candidate.name} gives other numbers"
    logger.info("H3TE: %s is unpacked by comfy_kitchen's %s kernel on %s.", trial.name, backend, device)
    return None


def _trial_parts(packing: Packing) -> Parts:
    """Every code there is, and scales of all sizes: random, but the same each time."""
    generator = torch.Generator().manual_seed(1)
    return {name: _random(part.dtype, part.shape, generator) for name, part in packing.parts.items()}


def _random(dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if dtype in (torch.uint8, torch.int8):
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(dtype)
    if dtype.itemsize == 1:  # float8: finite values of every exponent
        size = 2.0 ** (torch.rand(shape, generator=generator) * 8 - 6)
        return (torch.randn(shape, generator=generator) * size).to(dtype)
    return (torch.rand(shape, generator=generator) * 0.01 + 1e-4).to(dtype)


def _kitchen() -> ModuleType:
    import comfy_kitchen

    return comfy_kitchen
