"""Out of memory during an encode: which errors mean it, and how everything is offloaded for a second try.

Contract: `is_out_of_memory(error)`; Stop never is, whatever kind of exception the release makes it. `offload(patcher)`
puts every weight of ours back to where it rests, with its patches still applied when it is used, and has ComfyUI free
what its other models hold on the device; `place_nothing` does so where a load failed. `release(patcher)` gives up the
weights altogether: device, RAM and mapping.
"""

from __future__ import annotations

import comfy.model_management
import torch

EVERYTHING = 1e30
_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")  # CUDA and HIP; CPU; CPU on Windows


def is_out_of_memory(error: BaseException) -> bool:
    """Of the host, of torch for any device, or of Python."""
    management = comfy.model_management
    if isinstance(error, management.InterruptProcessingException):
        return False
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # where torch has no such class, some releases name every Exception
    if management.OOM_EXCEPTION is not Exception:
        judge = getattr(management, "is_oom", lambda e: isinstance(e, management.OOM_EXCEPTION))
        if judge(error):
            return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


def offload(patcher) -> None:
    """All weights to where they rest; a LoRA, and the hooks that are in force, stay in force."""
    hooks = patcher.current_hooks
    patcher.unpatch_hooks()
    _free_others(patcher)
    patcher.partially_unload(patcher.offload_device, EVERYTHING)
    comfy.model_management.soft_empty_cache()
    if hooks is not None:
        patcher.patch_hooks(hooks)


def place_nothing(patcher) -> None:
    """After a load that failed, which leaves the patcher without its patches: in force again, nothing on the device."""
    _free_others(patcher)
    patcher.partially_load(patcher.load_device, 1)


def _free_others(patcher) -> None:
    management = comfy.model_management
    if patcher.load_device.type != "cpu":
        ours = [loaded for loaded in management.current_loaded_models if loaded.model is patcher]
        management.free_memory(EVERYTHING, patcher.load_device, keep_loaded=ours)


def release(patcher) -> bool:
    """Drop the weights of the patcher and its clones; the next encode reads them again. False where they cannot be
    read again, because they were given by hand."""
    _unload(patcher)
    tree = patcher.model
    source = tree.encoder.source
    if source is not None:
        source.announce(tree.encoder.slots, tree.encoder.slots.names)
        tree.reading = None  # the RAM that is free at the next prompt decides anew
    comfy.model_management.soft_empty_cache()
    return source is not None


def _unload(patcher) -> None:
    """Off ComfyUI's list of loaded models, with every patch undone."""
    loaded = comfy.model_management.current_loaded_models
    for i in reversed(range(len(loaded))):
        if loaded[i].model is not None and patcher.is_clone(loaded[i].model):
            loaded.pop(i).model_unload()
    patcher.detach()
