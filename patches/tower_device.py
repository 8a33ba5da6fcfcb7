"""The vision tower computes on the device of its hidden states, wherever tables, frequencies and grids lie.

Target: `forward` of Qwen3VLVisionModel and of the towers that share its code (see qwen3_vl.py).
Reason: under partial loading the table of positions (`pos_embed.weight`) may stay on the CPU, and the tower takes its
device from that table, from the grids or from the buffer `inv_freq`; adding positions to hidden states then fails with
"Expected all tensors to be on the same device". Casting weights leaf by leaf cannot help: the tower makes its own
inputs on the wrong device. Where everything is in place the original is called and nothing else happens.
Versions: transformers 4.57 and later (three generations).
Delete when: the oldest supported release makes positions, interpolation and rotary angles on `hidden_states.device`.

The table and the frequencies are lent to a stand-in for the length of the call, so no device is noted on the module or
the thread. Positions made from grids elsewhere are moved; `cu_seqlens` stay where the grids are (sdpa and eager
attention read them on the host).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .lending import brought, lent
from .method_patch import Method, MethodPatch, Owners
from .qwen3_vl import TAPS, Family

NAME = "tower_device"
# Child of the tower -> the tensor that it needs on the compute device.
TENSORS = {"pos_embed": "weight", "rotary_pos_emb": "inv_freq"}
# Generation -> the arguments under which a tower accepts taps and weights that were made before.
ARGUMENTS = {"bilinear": ("bilinear_indices", "bilinear_weights"), "closed": ("interp_indices", "interp_weights")}


def patch_for(family: Family) -> MethodPatch:
    """The patch of one tower."""

    def wrap(original: Method, owners: Owners) -> Method:
        def forward(self: Any, hidden_states: Any, grid_thw: Any, *args: Any, **kwargs: Any):
            device = hidden_states.device
            if family.generation != "method":
                kwargs = {**kwargs, **_moved_positions(family, self, grid_thw, device, kwargs)}
            children = _brought_children(self, device)
            if not children:
                return original(self, hidden_states, grid_thw, *args, **kwargs)
            with lent(self, children, {}) as tower:
                return original(tower, hidden_states, grid_thw, *args, **kwargs)

        return forward

    return MethodPatch(NAME, family.tower, "forward", wrap)


def _brought_children(tower: nn.Module, device: torch.device) -> dict[str, nn.Module]:
    pairs = ((child, brought(getattr(tower, child, tower), name, device)) for child, name in TENSORS.items())
    return {child: module for child, module in pairs if module is not None}


def _moved_positions(
    family: Family, tower: nn.Module, grids: torch.Tensor, device: torch.device, given: dict[str, Any]
) -> dict[str, Any]:
    """Taps, weights and position ids on `device`, by the names under which the tower accepts them; {} in place."""
    names = (*ARGUMENTS[family.generation], "position_ids")
    ready = {name: given[name] for name in names if given.get(name) is not None}
    if grids.device != device and len(ready) < len(names):
        ready = {**dict(zip(names, _positions(family, tower, grids), strict=True)), **ready}
    return {name: tensor.to(device) for name, tensor in ready.items() if tensor.device != device}


def _positions(family: Family, tower: nn.Module, grids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the tower would make of these grids, where they are: taps, weights, position ids."""
    make = getattr(family.module, TAPS[family.generation])
    rule = {}
    if family.generation == "closed":
        rule = {"mode": tower.interpolation_mode, "align_corners": tower.interpolation_align_corners}
    merge = tower.config.spatial_merge_size
    taps = make(grids, num_grid_per_side=tower.num_grid_per_side, spatial_merge_size=merge, **rule)
    return (*taps, family.module.get_vision_position_ids(grids, merge))
