"""The parity walk: ours and transformers' on the same input part by part, and both chained from the request on.

Contract: `compare_with_official(...)` and `compare_checkpoints(...)` -> rows. A row tells of one part: the error on the
same input (None where a part has none of its own) and the accumulated error of everything up to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from official_path import Request
from parity_official import Call, OfficialParts
from parity_ours import OurParts
from parity_parts import DECODER_INPUT, LAYER, PATCHES, Part, States

# On the same input everything is the same order of operations but the patch embedding, a matrix product where the
# released model has a Conv3d: relative L2 6e-7 in float32 and 5e-5 in bf16 measured.
PATCH_LIMIT = {torch.float32: 1e-6, torch.bfloat16: 1e-4}
# AWQ: ours multiplies the input of o_proj and down_proj as ComfyUI does, transformers gets the factor in the matrix.
SCALED_LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# What those last bits grow to behind 27 blocks and 50 layers; bf16 against float32 is of the same size.
CHAINED_LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Error:
    """max_abs: the largest absolute difference; relative: L2 of the difference over L2 of the reference."""

    max_abs: float
    relative: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.relative <= self.limit  # False for NaN


@dataclass(frozen=True)
class Row:
    part: Part
    same_input: Error | None
    chained: Error

    @property
    def passed(self) -> bool:
        return self.chained.passed and (self.same_input is None or self.same_input.passed)


def difference(ours: torch.Tensor, theirs: torch.Tensor, limit: float = math.inf) -> Error:
    """How far ours is from theirs; shapes must agree. Both zero: 0; theirs zero alone: infinity."""
    if ours.shape != theirs.shape:
        raise RuntimeError(
            f"parity: expected both sides to compute the same shape, got {list(ours.shape)} and {list(theirs.shape)}. "
            "This is an error of the encoder: please report it."
        )
    if torch.equal(ours, theirs):
        return Error(0.0, 0.0, limit)
    apart = ours.float() - theirs.float()
    norm = float(theirs.double().norm())
    return Error(float(apart.abs().max()), float(apart.double().norm()) / norm if norm else math.inf, limit)


def compare_with_official(
    ours: OurParts, official: OfficialParts, request: Request, states: States, on_row: Callable[[Row], None]
) -> list[Row]:
    """states: what `ours.record` kept of the same request."""
    dtype, exact = ours.encoder.dtype, (ours.convolution or not request.patches) and not ours.scales_inputs
    rows = []

    def on_part(call: Call) -> None:
        limit = 0.0 if exact else CHAINED_LIMIT[dtype]
        chained = difference(states.load(call.part), call.output, limit)
        rows.append(Row(call.part, _on_same_input(ours, call), chained))
        on_row(rows[-1])

    official.run(request, on_part)
    return rows


def _on_same_input(ours: OurParts, call: Call) -> Error | None:
    if call.part.kind == DECODER_INPUT:
        return None
    mine = ours.compute(call.part, call.x)
    return difference(mine, call.output, _limit(ours, call.part))


def _limit(ours: OurParts, part: Part) -> float:
    if part.kind == PATCHES and not ours.convolution:
        return PATCH_LIMIT[ours.encoder.dtype]
    return SCALED_LIMIT[ours.encoder.dtype] if part.kind == LAYER and ours.scales_inputs else 0.0


def compare_checkpoints(rows: list[Row], states: States, other: States) -> Iterator[tuple[Part, Error]]:
    """The other checkpoint's states against this one's, both by our encoder, in the order of the walk."""
    for row in rows:
        yield row.part, difference(other.load(row.part), states.load(row.part))
