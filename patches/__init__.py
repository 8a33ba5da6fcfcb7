"""Corrections of third-party code, one patched symbol per module, joined here.

Contract: a patch is an object with `name`, `apply()` and `remove()`. `Patches.apply()` installs each once however
often it is called; `Patches.remove()` undoes them in reverse order. A patch that fails to install undoes those before
it, so that no half of them stays. Installing is class-level and explicit: importing this package changes nothing.
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
