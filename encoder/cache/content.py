"""What a request is, by its content: one key a token.

Contract: the keys of two sequences are equal up to n exactly where their tokens, pixels and positions are equal up to
n. A block's digest covers its grid, so that blocks of one digest have equally many tokens, and a common prefix never
ends inside one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..pixels import Patches
from ..placement import Block
from .digest import step_digest

NUMERICS_VERSION = 1  # raised by hand whenever a result changes: part of every key


def block_digests(patches: Patches) -> tuple[bytes, ...]:
    """16 bytes of each temporal step of each reference: those that came with the patches, or of the rows themselves."""
    if patches.digests is not None:
        return patches.digests
    found, start, kind = [], 0, str(patches.pixel_values.dtype).removeprefix("torch.")
    for steps, height, width in patches.grid_thw.tolist():
        for _ in range(steps):
            rows = patches.pixel_values[start : start + height * width]
            found.append(step_digest(kind, height, width, [rows]))
            start += height * width
    return tuple(found)


def token_keys(ids: torch.Tensor, blocks: Sequence[Block], digests: Mapping[str, Sequence[bytes]]) -> torch.Tensor:
    """ids int64 [S], its blocks, the digests of each modality in order -> int64 [S, 2]: (id, 0) for text, the two
    halves of the block's digest for pads."""
    keys = torch.stack((ids, torch.zeros_like(ids)), dim=1)
    following = {modality: iter(of) for modality, of in digests.items()}
    for block in blocks:
        keys[block.start : block.stop] = torch.tensor(_halves(next(following[block.modality])))
    return keys


def _halves(digest: bytes) -> list[int]:
    return [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
