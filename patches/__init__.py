"""Corrections of third-party code, one patched symbol per module, joined here.

Contract: a patch is an object with `name`, `apply()` and `remove()`. `Patches.apply()` installs each once however
often it is called; `Patches.remove()` undoes them in reverse order. A patch that fails to install undoes those before
it, so that no half of them stays. Installing is class-level and explicit: importing this package changes nothing.
`for_transformers()` is the set that the official backend needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Patch(Protocol):
    name: str

    def apply(self) -> None: ...

    def remove(self) -> None: ...


class Patches:
    """An ordered set of patches that are installed and removed together."""

    def __init__(self, patches: Iterable[Patch]):
        self.patches = tuple(patches)
        self.installed: list[Patch] = []

    def apply(self) -> None:
        try:
            for patch in self.patches:
                if patch not in self.installed:
                    patch.apply()
                    self.installed.append(patch)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        while self.installed:
            self.installed.pop().remove()


def for_transformers(interpolation: str = "chosen") -> Patches:
    """What makes transformers' Qwen3-VL compute on one device, and as H3 was released; not installed yet.

    interpolation: whose positions follow the closed form, "chosen" (closed_interpolation.choose) or "all" models.
    Raises ValueError for another word, ImportError where transformers is missing.
    """
    from . import closed_interpolation, closed_taps, text_rotary_device, tower_device
    from .qwen3_vl import families

    if interpolation not in ("chosen", closed_interpolation.EVERY):
        raise ValueError(
            f'patches: expected interpolation "chosen" or "all", got {interpolation!r}. Use "chosen" unless every '
            "Qwen3-VL in this process should compute as MiniMax H3 was released."
        )
    found: list[Patch | None] = []
    for family in families():
        found.append(tower_device.patch_for(family))
        found.append(text_rotary_device.patch_for(family))
        found.append(closed_interpolation.patch_for(family, interpolation))
        found.append(closed_taps.patch_for(family, interpolation))
    return Patches(patch for patch in found if patch is not None)
