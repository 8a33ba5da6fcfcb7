"""What the LoRAs on an encoder are by content, so that what was computed with them is known again.

Contract: `lora_digest(patcher)` is "" without any, and None for what cannot be told by content: patches that run code,
and weights that are swapped while others run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch


class _Untold(Exception):
    """A part that has no content."""


def lora_digest(patcher: Any) -> str | None:
    """Hex digest of weights, strengths and places of all patches of a ModelPatcher."""
    if patcher.forced_hooks is not None or patcher.current_hooks is not None or patcher.object_patches:
        return None
    return _of_patches(_Patches(patcher.patches_uuid, patcher.patches)) if patcher.patches else ""


class _Patches:
    """The patches behind one uuid; ComfyUI gives another whenever they change."""

    def __init__(self, uuid: Any, patches: Mapping[Any, list]):
        self.uuid, self.patches = uuid, patches

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Patches) and self.uuid == other.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)


@lru_cache(maxsize=4)
def _of_patches(given: _Patches) -> str | None:
    digest = hashlib.sha256()
    try:
        for key in sorted(given.patches, key=repr):
            _add(digest, (key, given.patches[key]))
    except _Untold:
        return None
    return digest.hexdigest()


def _add(digest: Any, part: Any) -> None:
    """Every part with its kind and length, so that no two read alike."""
    if isinstance(part, torch.Tensor):
        data = part.detach().cpu().contiguous()
        digest.update(f"tensor {data.dtype} {tuple(data.shape)};".encode())
        digest.update(memoryview(data.reshape(-1).view(torch.uint8).numpy()))
    elif part is None or isinstance(part, (bool, int, float, str)):
        text = repr(part).encode()
        digest.update(f"{type(part).__name__} {len(text)} ".encode() + text)
    elif isinstance(part, (tuple, list)):
        digest.update(f"list {len(part)};".encode())
        for each in part:
            _add(digest, each)
    elif hasattr(part, "weights") and hasattr(part, "name"):  # ComfyUI's adapters: LoRA, LoHa, LoKr, OFT and others
        digest.update(f"adapter {type(part).__name__};".encode())
        _add(digest, (part.name, part.weights))
    else:
        raise _Untold
