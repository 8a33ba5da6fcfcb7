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
    if patcher.forced_hooks is not None or patcher.current_hooks is not None or runs_code(patcher):
        return None
    return _of_patches(_Patches(patcher.patches_uuid, patcher.patches)) if patcher.patches else ""


def runs_code(patcher: Any) -> bool:
    """Whether results are changed by code: replaced modules, wrapped weights, injections (LoRAs in bypass mode)."""
    return any(getattr(patcher, name, None) for name in ("object_patches", "weight_wrapper_patches", "injections"))


class _Patches:
    """The patches behind one uuid; ComfyUI gives another whenever they change. They are let go once they are read, as
    whoever is remembered by its uuid must not hold a LoRA in memory."""

    def __init__(self, uuid: Any, patches: Mapping[Any, list]):
        self.uuid, self._patches = uuid, patches

    def taken(self) -> Mapping[Any, list]:
        patches, self._patches = self._patches, {}
        return patches

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Patches) and self.uuid == other.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)


@lru_cache(maxsize=64)
def _of_patches(given: _Patches) -> str | None:
    digest, patches = hashlib.sha256(), given.taken()
    try:
        for key in sorted(patches, key=repr):
            _add(digest, (key, patches[key]))
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
