"""Tiny towers and rotary embeddings of every model that shares Qwen3-VL's code, and requests for them.

Contract: `tower(family)`, `text_rotary(family)` with fixed weights on the CPU; `pixels(device)`, `grids()`, `premade`:
what a request brings; `cast_leaves(tower)`: weights stay where they are and are cast to the input's device, as a host
does under partial loading; `Elsewhere`: a CPU tensor that says it lies on another device than CPU tensors do.
"""

from __future__ import annotations

import copy
import typing

import torch
import torch.nn.functional as F
from h3te.encoder.rope import interpolation_taps, patch_positions
from h3te.patches.qwen3_vl import Family
from h3te.patches.tower_device import ARGUMENTS
from torch import nn

CPU, META = torch.device("cpu"), torch.device("meta")
GRIDS = ((1, 16, 28), (1, 6, 10), (3, 4, 6))
SIDE, MERGE, PATCH_WIDTH = 48, 2, 1536
VISION = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32, "patch_size": 16,
    "spatial_merge_size": MERGE, "temporal_patch_size": 2, "num_position_embeddings": SIDE * SIDE,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}


def tower(family: Family, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A vision tower with fixed weights; inv_freq stays float32."""
    kind = family.tower.config_class
    deepstack = {"deepstack_visual_indexes": [0]} if hasattr(kind(depth=1), "deepstack_visual_indexes") else {}
    config = kind(**VISION, **deepstack)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    built = family.tower(config).eval().requires_grad_(False)
    for parameter in built.parameters():
        spread = 0.5 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        parameter.data = (torch.randn(parameter.shape) * spread).to(dtype)
    return built


def text_rotary(family: Family) -> nn.Module:
    """The decoder's rotary embedding."""
    kind = typing.get_type_hints(family.text_rotary.__init__)["config"]
    name = "rope_scaling" if family.version < (5, 0) else "rope_parameters"
    return family.text_rotary(
        kind(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, **{name: dict(ROPE)})
    )


def grids() -> torch.Tensor:
    return torch.tensor(GRIDS)


def pixels(device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = sum(t * h * w for t, h, w in GRIDS)
    made = torch.randn(count, PATCH_WIDTH, generator=torch.Generator().manual_seed(1))
    return made.to(device=device, dtype=dtype)


def premade(family: Family, device: torch.device) -> dict[str, torch.Tensor]:
    """Positions on `device` as a tower would make them of grids that lie there; meta grids would have no values."""
    if family.generation == "method":
        return {}
    taps, weights = (made.T if family.generation == "bilinear" else made for made in closed_form())
    positions = patch_positions(GRIDS, MERGE)
    names = (*ARGUMENTS[family.generation], "position_ids")
    return {name: made.to(device) for name, made in zip(names, (taps, weights, positions), strict=True)}


def closed_form() -> tuple[torch.Tensor, torch.Tensor]:
    return interpolation_taps(GRIDS, MERGE, SIDE)


def moved_but(built: nn.Module, child: str) -> nn.Module:
    """The whole tower on meta but one child, which stays on the CPU."""
    kept = copy.deepcopy(getattr(built, child))
    built.to(META)
    setattr(built, child, kept)
    return built


def cast_leaves(built: nn.Module) -> nn.Module:
    """Every leaf casts its weights to its input's device at each call; they stay where they are."""
    for module in built.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Conv3d | nn.Embedding):
            module.forward = _Cast(module)
    return built


class _Cast:
    def __init__(self, leaf: nn.Module):
        self.leaf = leaf

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        leaf = self.leaf
        weight, bias = (t if t is None else t.to(x.device) for t in (leaf.weight, getattr(leaf, "bias", None)))
        if isinstance(leaf, nn.Embedding):
            return F.embedding(x, weight)
        if isinstance(leaf, nn.LayerNorm):
            return F.layer_norm(x, leaf.normalized_shape, weight, bias, leaf.eps)
        return F.linear(x, weight, bias) if isinstance(leaf, nn.Linear) else F.conv3d(x, weight, bias, leaf.stride)


class Elsewhere(torch.Tensor):
    """A CPU tensor that says "cpu:0" where others say "cpu": whatever must be moved is, and keeps its values."""

    device = torch.device("cpu", 0)
    __torch_function__ = torch._C._disabled_torch_function_impl


def first(result: object) -> torch.Tensor:
    """The merged features of a tower's result, which is a tuple, a tensor or an output object."""
    if isinstance(result, torch.Tensor):
        return result
    return result[0] if isinstance(result, tuple) else result.pooler_output
