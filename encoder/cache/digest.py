"""The digest of what one vision block shows.

Contract: 16 bytes; equal digests mean equal pixels, equal grid and so an equal count of tokens, and the same kind of
source. An accident is as likely as 2 ** -64.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import torch

DIGEST_BYTES = 16


def step_digest(kind: str, height: int, width: int, parts: Iterable[torch.Tensor]) -> bytes:
    """kind: what the parts are ("u8": frames as resized, "float32": rows of patches, ...). height, width: patches."""
    digest = blake2b(f"{kind} {height} {width} ".encode(), digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def frames_digests(frames: torch.Tensor, per_step: int, height: int, width: int) -> tuple[bytes, ...]:
    """uint8 [T, C, H, W], T a multiple of `per_step` -> one digest a temporal step. Equal frames of a step count once,
    so that a still picture is the same however it was made."""
    steps = (frames[i : i + per_step] for i in range(0, len(frames), per_step))
    return tuple(step_digest("u8", height, width, step[:1] if _still(step) else step) for step in steps)


def _still(step: torch.Tensor) -> bool:
    return step.stride(0) == 0 or bool((step[1:] == step[:1]).all())
