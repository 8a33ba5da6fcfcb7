"""The tower's own interpolation of positions follows the closed float32 form of transformers 5.15.

Target: `fast_pos_embed_interpolate` of Qwen3VLVisionModel and of the towers that share its code (see qwen3_vl.py).
Reason: MiniMax H3 was released with 5.15's form. Before, coordinates come from a linspace and the four weights are
rounded to the table's dtype, so pictures drift before the first block (0.0156 in bf16 at tiny size). Text is the same.
Versions: transformers 4.57 to 5.8; 5.9 to 5.14 have closed_taps.py instead.
Delete when: no release before 5.9 is supported.

Only towers that were chosen (`choose`) follow it, unless an owner of the patch asks for "all": what other packs compute
must not change because this one is installed.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..encoder.rope import interpolation_taps
from .method_patch import Method, MethodPatch, Owners
from .qwen3_vl import Family

NAME = "closed_interpolation"
CHOSEN = "h3te_closed_interpolation"
EVERY = "all"


def choose(model: nn.Module) -> None:
    """The towers in this model follow the closed form as soon as the patch is installed."""
    for module in model.modules():
        if hasattr(module, "pos_embed") and hasattr(module, "rotary_pos_emb"):
            setattr(module, CHOSEN, True)


def is_chosen(tower: nn.Module, owners: Owners) -> bool:
    return getattr(tower, CHOSEN, False) or EVERY in owners.values()


def patch_for(family: Family, setting: str = "") -> MethodPatch | None:
    """The patch of one tower; None where the release has no such method, or does not call it. setting: "" or "all"."""
    if family.generation != "method":
        return None

    def wrap(original: Method, owners: Owners) -> Method:
        def fast_pos_embed_interpolate(self: Any, grid_thw: Any, *args: Any, **kwargs: Any):
            if not is_chosen(self, owners):
                return original(self, grid_thw, *args, **kwargs)
            table = self.pos_embed.weight
            taps, weights = interpolation_taps(
                grid_thw.tolist(), self.config.spatial_merge_size, self.num_grid_per_side, table.device
            )
            return (self.pos_embed(taps) * weights[:, :, None]).sum(1).to(table.dtype)

        return fast_pos_embed_interpolate

    return MethodPatch(NAME, family.tower, "fast_pos_embed_interpolate", wrap, setting)
