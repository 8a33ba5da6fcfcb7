"""Nodes for the endurance run: a limit to what ComfyUI's patcher may load, and a LoRA without a file.

Not part of the pack. On a CPU ComfyUI loads every model whole and loading moves nothing. From its first use on, the
budget node makes the CPU stand in for a device (scripts/budgets_device.py) and holds the patcher of H3's text encoder
to its percentage; a patcher that loads more is an error.
"""

import importlib
import sys
import types
from functools import lru_cache
from pathlib import Path

import comfy.model_patcher
import torch

LORA_KEY = "qwen3vl_32b.transformer.model.layers.0.mlp.down_proj.weight"
_allowed = 100  # percent


class EnduranceBudget:
    """Runs at every prompt: what another one left in ComfyUI's cache has another budget."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"clip": ("CLIP",), "percent": ("INT", {"default": 100, "min": 0, "max": 100})}}

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "allow"
    CATEGORY = "testing"

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")

    def allow(self, clip, percent):
        global _allowed
        _stand_in()
        _allowed = percent
        return (clip,)


class EnduranceLora:
    """The same numbers at every use."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"clip": ("CLIP",), "strength": ("FLOAT", {"default": 0.5})}}

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    def patch(self, clip, strength):
        text = clip.patcher.model.encoder.config.text
        rows, columns = text.hidden_size, text.intermediate_size
        up = torch.linspace(-1, 1, rows * 4).reshape(rows, 4) / 16
        down = torch.linspace(1, -1, columns * 4).reshape(4, columns) / 16
        patched = clip.clone()
        lora = comfy.lora.load_lora({"x.lora_up.weight": up, "x.lora_down.weight": down}, {"x": LORA_KEY})
        patched.add_patches(lora, strength)
        return (patched,)


@lru_cache(maxsize=1)
def _stand_in():
    """Once, until the process ends."""
    sys.modules.setdefault("pack", _pack_of_the_host())
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import budgets_device

    budgets_device.stand_in_device().__enter__()
    real = comfy.model_patcher.ModelPatcher.partially_load

    def partially_load(patcher, device_to, extra_memory=0, **options):
        if _allowed >= 100 or type(patcher.model).__name__ != "HostTree":
            return real(patcher, device_to, extra_memory, **options)
        limit = patcher.model_size() * _allowed // 100
        loaded = real(patcher, device_to, min(extra_memory, limit - patcher.loaded_size()), **options)
        if patcher.loaded_size() > limit:
            raise RuntimeError(f"budget: expected at most {limit:,} bytes loaded, got {patcher.loaded_size():,}.")
        return loaded

    comfy.model_patcher.ModelPatcher.partially_load = partially_load


def _pack_of_the_host():
    """What scripts/pack.py is, for the pack that this ComfyUI has loaded under a name of its own."""
    from nodes import NODE_CLASS_MAPPINGS

    name = NODE_CLASS_MAPPINGS["H3TELoadTextEncoder"].__module__.removesuffix(".nodes.load_text_encoder")
    module = types.ModuleType("pack")
    module.h3te_module = lambda path: importlib.import_module(f"{name}.{path}")
    return module


NODE_CLASS_MAPPINGS = {"H3TEEnduranceBudget": EnduranceBudget, "H3TEEnduranceLora": EnduranceLora}
