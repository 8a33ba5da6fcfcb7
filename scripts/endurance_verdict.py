"""Is what an endurance run gave what a fresh encode gives? Each result against one computed whole, in a ComfyUI of its
own without caches, budgets and readers.

Contract: docs/caches.md says what is equal to what, and `verdict` holds each result to it: `bit` where no
prefix of another prompt was used, `rounding` (float32 within 1e-5; bfloat16 no further from float32 than 1.2 times the
whole computation) where a prefix was reused, now or when a hit was stored, `wrong` otherwise. Tensors are [1, S, D]
with tags [S].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

FLOAT32, ROUNDING = 1e-5, 1.2
Found = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Verdict:
    """kind: bit, rounding or wrong; figure: 0 for bit, the relative difference in float32, the ratio in bfloat16."""

    kind: str
    figure: float = 0.0
    why: str = ""


def same(ours: Found, theirs: Found) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)


def verdict(
    ours: Found, fresh: Found, exact: Found | None, whole: bool, said: str, earlier: Sequence[Found]
) -> Verdict:
    """exact: the fresh encode in float32 (None: this is float32). whole: nothing of another prompt may be used. said:
    what the node said of the caches, "" where it says nothing. earlier: results of the same request."""
    if same(ours, fresh):
        return Verdict("bit")
    if ours["hidden"].shape != fresh["hidden"].shape or not torch.equal(ours["tags"], fresh["tags"]):
        return Verdict("wrong", why=f"shape {list(ours['hidden'].shape)}, fresh {list(fresh['hidden'].shape)}, or tags")
    if whole or (said and not said.startswith(("hit", "prefix"))):
        return Verdict("wrong", relative(ours, fresh), f"expected every bit of a fresh encode ({said or 'whole'})")
    if said.startswith("hit") and not any(same(ours, one) for one in earlier):
        return Verdict("wrong", relative(ours, fresh), f"{said}: expected the bits of an earlier result")
    return _rounded(ours, fresh, exact)


def _rounded(ours: Found, fresh: Found, exact: Found | None) -> Verdict:
    if exact is None:
        figure, limit = relative(ours, fresh), FLOAT32
    else:
        figure, limit = relative(ours, exact) / max(relative(fresh, exact), 1e-12), ROUNDING
    return Verdict("rounding" if figure <= limit else "wrong", figure, f"at most {limit:g}")


def relative(ours: Found, theirs: Found) -> float:
    """Relative L2 distance of the hidden states, in float64."""
    a, b = ours["hidden"].double(), theirs["hidden"].double()
    return float((a - b).norm() / b.norm())
