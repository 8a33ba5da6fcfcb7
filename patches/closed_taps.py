"""The four taps of every position and their weights follow the closed form of transformers 5.15.

Target: `forward` of Qwen3VLVisionModel and of the towers that share its code (see qwen3_vl.py).
Reason: MiniMax H3 was released with 5.15's form; here the coordinates still come from a linspace, whose last bits
differ, so pictures drift before the first block. The tower accepts taps that were made before, and gets ours.
Versions: transformers 5.9 to 5.14; older releases have closed_interpolation.py instead.
Delete when: no release before 5.15 is supported.

Only towers that were chosen follow it, unless an owner of the patch asks for "all", as in closed_interpolation.py.
"""

from __future__ import annotations

from typing import Any

from ..encoder.rope import interpolation_taps
from .closed_interpolation import is_chosen
from .method_patch import Method, MethodPatch, Owners
from .qwen3_vl import Family

NAME = "closed_taps"


def patch_for(family: Family, setting: str = "") -> MethodPatch | None:
    """The patch of one tower; None where the release has no such taps, or has them closed. setting: "" or "all"."""
    if family.generation != "bilinear":
        return None

    def wrap(original: Method, owners: Owners) -> Method:
        def forward(self: Any, hidden_states: Any, grid_thw: Any, *args: Any, **kwargs: Any):
            if is_chosen(self, owners):
                taps, weights = interpolation_taps(
                    grid_thw.tolist(), self.config.spatial_merge_size, self.num_grid_per_side, hidden_states.device
                )
                kwargs |= {"bilinear_indices": taps.T, "bilinear_weights": weights.T}
            return original(self, hidden_states, grid_thw, *args, **kwargs)

        return forward

    return MethodPatch(NAME, family.tower, "forward", wrap, setting)
