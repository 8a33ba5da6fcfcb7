"""The decoder's rotary table is made on the device of its hidden states, wherever the buffer `inv_freq` lies.

Target: `forward` of Qwen3VLTextRotaryEmbedding and of the classes that share its code (see qwen3_vl.py).
Reason: `inv_freq` is a buffer that is not saved; who moves weights one by one leaves it behind, and its product with
the position ids then fails, or gives tables on another device than the queries.
Versions: transformers 4.57 to 5.8. Later releases move it themselves, and are left alone.
Delete when: no release before 5.9 is supported.

Rope types other than the default keep frequencies of their own on the module and move them; they are left alone.
"""

from __future__ import annotations

from typing import Any

from .lending import brought
from .method_patch import Method, MethodPatch, Owners
from .qwen3_vl import Family

NAME = "text_rotary_device"
FOLLOWS_ITSELF = (5, 9)


def patch_for(family: Family) -> MethodPatch | None:
    """The patch of one text rotary embedding; None where the release needs none."""
    if family.version >= FOLLOWS_ITSELF or family.text_rotary is None:
        return None

    def wrap(original: Method, owners: Owners) -> Method:
        def forward(self: Any, x: Any, position_ids: Any, *args: Any, **kwargs: Any):
            rotary = brought(self, "inv_freq", x.device) if self.rope_type == "default" else None
            if position_ids.device != x.device and not position_ids.is_meta:
                position_ids = position_ids.to(x.device)
            return original(self if rotary is None else rotary, x, position_ids, *args, **kwargs)

        return forward

    return MethodPatch(NAME, family.text_rotary, "forward", wrap)
