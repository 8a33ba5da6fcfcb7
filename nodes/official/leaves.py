"""transformers' leaf modules, without weights of their own: each borrows from the encoder's leaf of the same name.

Contract: `exchange(model, encoder)` replaces every leaf of transformers' model by one that runs the very `forward` that
it had, with weights lent for the length of the call. Nothing is in memory twice, and whoever manages the encoder's
leaves (a host's patcher, LoRA, packed or streamed weights) manages these.
"""

from __future__ import annotations

import torch
from torch import nn

from ...encoder import Encoder
from ...encoder.token_table import TokenTable
from ...patches.lending import stand_in


class LentLeaf(nn.Module):
    """One leaf of transformers' (on meta) that computes with the weights of one of ours.

    `weight` has no values: it names the compute dtype, for which the official code asks. That it lies on meta tells the
    patches that this leaf goes wherever its input is.
    """

    def __init__(self, theirs: nn.Module, ours: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.pair = (theirs, ours)  # in a tuple, so that neither becomes a child: both are managed elsewhere
        self.weight = torch.empty(0, dtype=dtype, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theirs, ours = self.pair
        dtype = self.weight.dtype
        with ours.borrow(torch.empty(0, dtype=dtype, device=x.device)) as (weight, bias):
            if ours.input_scale is not None and ours.is_packed(weight):
                x = x * ours.input_scale.to(device=x.device, dtype=x.dtype)
            lent = {"weight": ours.matrix(weight, dtype)}
            if bias is not None:
                lent["bias"] = bias.to(dtype)
            return stand_in(theirs, {}, lent)(x)


class LentTokens(nn.Module):
    """The token embedding: rows are looked up in the encoder's table, on the CPU, and moved to the ids' device."""

    def __init__(self, table: TokenTable, dtype: torch.dtype):
        super().__init__()
        self.table, self.dtype = table, dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids.flatten().cpu(), ids.device, self.dtype)
        return rows.view(*ids.shape, rows.shape[-1])


def exchange(model: nn.Module, encoder: Encoder) -> None:
    """Replace all leaves of transformers' model (built on meta) by borrowing ones. Raises RuntimeError naming weights
    that the encoder does not have."""
    for name, leaf in encoder.model.named_modules():
        if hasattr(leaf, "borrow"):  # a host may bring leaves of its own
            parent, _, child = name.rpartition(".")
            holder = model.get_submodule(parent)
            setattr(holder, child, LentLeaf(getattr(holder, child), leaf, encoder.dtype))
    model.language_model.embed_tokens = LentTokens(encoder.model.language_model.embed_tokens, encoder.dtype)
    if encoder.model.visual is None:
        model.visual = None
    if left := [name for name, _ in model.named_parameters()]:
        raise RuntimeError(
            f"Official backend: expected every weight of transformers' model in the encoder, got none for {len(left)} "
            f"(first: {left[0]}). This release has another model: choose the backend of the pack."
        )
    if model.visual is not None:  # the official code asks the tower for its dtype, and the tower its first parameter
        nothing = torch.empty(0, dtype=encoder.dtype)
        model.visual.register_parameter("computes_in", nn.Parameter(nothing, requires_grad=False))
