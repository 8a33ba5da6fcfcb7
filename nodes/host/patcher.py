"""ComfyUI's plain model patcher, for weights that it cannot patch itself: packed ones, and those read from their file.

Contract: a LoRA on such a weight is not written into it but kept beside it, and its leaf applies it to the unpacked
matrix whenever that is used (leaf.py). What would be wrong is refused by name: a LoRA on a norm of an AWQ file or on a
matrix whose input such a norm scales, and LoRA hooks, which swap weights during sampling. A LoRA of strength 0 changes
nothing, to the last bit. On a remote encoder every LoRA is refused. Everything else is the plain patcher's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import comfy.lora
import comfy.model_patcher
import comfy.utils
import torch

from .leaf import HostLeaf
from .placing import watching
from .stop import heed_stop

WHO = "MiniMax H3 text encoder (H3TE)"
_SCALED_BY_AWQ = re.compile(
    r"\.layers\.\d+\.(self_attn\.[qkv]_proj|mlp\.(gate|up)_proj|(input|post_attention)_layernorm)\.weight$"
)


class _Patches:
    """The patches of one key, as ComfyUI applies them to a weight."""

    def __init__(self, key: str, patches: Mapping[str, list]):
        self.key, self.patches = key, patches

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        return comfy.lora.calculate_weight(self.patches[self.key], weight, self.key, intermediate_dtype=weight.dtype)


class H3Patcher(comfy.model_patcher.ModelPatcher):
    def add_patches(self, patches, strength_patch=1.0, strength_model=1.0):
        """Also the refusal, at the node that brings the LoRA. Returns the keys that are the model's."""
        known = self.model.state_dict().keys()
        ours = [k for k in patches if _name(k) in known]  # a LoRA brings the diffusion model's patches too
        if all(_is_inert(patches[k], strength_patch, strength_model) for k in ours):
            return ours
        if getattr(self.model, "remote", None) is not None:
            refuse_remote(f"a LoRA on {len(ours)} of its weights")
        if getattr(self.model, "norms_carry_scales", False):
            _refuse_scaled([_name(k) for k in ours])
        return super().add_patches(patches, strength_patch, strength_model)

    def add_hook_patches(self, hook, patches, strength_patch=1.0, strength_model=1.0):
        """Hooks that leave the text encoder as it is are nothing to a worker."""
        if getattr(self.model, "remote", None) is None:
            return super().add_hook_patches(hook, patches, strength_patch, strength_model)
        known = self.model.state_dict().keys()
        ours = [k for k in patches or () if _name(k) in known]
        if not all(_is_inert(patches[k], strength_patch, strength_model) for k in ours):
            refuse_remote(f"a LoRA hook on {len(ours)} of its weights")
        return set()

    def patch_weight_to_device(self, key, *args, **kwargs):
        done = self._patch_weight(key, *args, **kwargs)
        if (watch := watching()) is not None:
            watch.planned(comfy.utils.get_attr(self.model, key), patched=key in self.patches)
        return done

    def _patch_weight(self, key, *args, **kwargs):
        leaf = self._resting(key)
        if leaf is None:
            return super().patch_weight_to_device(key, *args, **kwargs)
        leaf.resting_function = [_Patches(key, self.patches)] if key in self.patches else []
        if leaf.weight.device.type == "cpu":  # newer releases fill a placeholder with zeros before they move it
            leaf.weight = torch.nn.Parameter(torch.empty_like(leaf.weight, device="meta"), requires_grad=False)
        return leaf.weight

    def pin_weight_to_device(self, key):
        """Of a weight that stays behind: the system reads it from its file."""
        if watching() is not None:
            heed_stop()
        super().pin_weight_to_device(key)

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        if unpatch_weights:
            for module in self.model.modules():
                if isinstance(module, HostLeaf):
                    module.resting_function = []
                    if module.rest is not None:
                        module.weight_function = []
        super().unpatch_model(device_to, unpatch_weights)

    def patch_hook_weight_to_device(self, hooks, combined_patches, key, *args, **kwargs):
        if key in combined_patches and self._resting(key) is not None:
            raise ValueError(
                f"{WHO}: expected a LoRA without a hook on a packed or streamed text encoder, got a hook on {key}. "
                "Apply it with LoraLoader, or load the bf16 file."
            )
        return super().patch_hook_weight_to_device(hooks, combined_patches, key, *args, **kwargs)

    def _resting(self, key: str) -> HostLeaf | None:
        path, _, attribute = key.rpartition(".")
        module = self.model.get_submodule(path) if attribute == "weight" else None
        return module if isinstance(module, HostLeaf) and module.rest is not None else None


def refuse_remote(got: str) -> NoReturn:
    """What would have no effect on a worker, whose weights are its own."""
    raise ValueError(
        f"{WHO}: expected a remote text encoder as the worker loaded it, got {got}. Set the CLIP strength to 0, or "
        "empty remote in the options and load the checkpoint here."
    )


def _is_inert(patch: object, strength_patch: float, strength_model: float) -> bool:
    """Strength 0 adds nothing; a patch that sets the weight ignores its strength."""
    sets = isinstance(patch, tuple) and len(patch) == 2 and patch[0] == "set"
    return strength_patch == 0 and strength_model == 1 and not sets


def _name(key: str | tuple) -> str:
    """Of the weight that a patch is for; patches for a part of one come with the part."""
    return key if isinstance(key, str) else key[0]


def _refuse_scaled(names: Sequence[str]) -> None:
    scaled = [name for name in names if _SCALED_BY_AWQ.search(name)]
    if scaled:
        raise ValueError(
            f"{WHO}: expected no LoRA on q, k, v, gate, up or a norm of an AWQ file, got one on {len(scaled)} of them "
            f"(first: {scaled[0]}). That file's norms scale the inputs of these matrices by factors it does not name, "
            "so the LoRA would be wrong: load the bf16, int8 or GGUF file, or set the LoRA's CLIP strength to 0."
        )
