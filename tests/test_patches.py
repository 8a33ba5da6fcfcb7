"""The patches' registry: once, in order, undone in reverse, and never half installed."""

from __future__ import annotations

import pytest
from h3te.patches import Patches


class Recorded:
    def __init__(self, name: str, log: list[str], fails: bool = False):
        self.name, self.log, self.fails = name, log, fails

    def apply(self):
        if self.fails:
            raise RuntimeError(self.name)
        self.log.append(f"+{self.name}")

    def remove(self):
        self.log.append(f"-{self.name}")


def test_patches_are_installed_once_and_removed_in_reverse():
    log: list[str] = []
    patches = Patches([Recorded("a", log), Recorded("b", log)])
    patches.apply()
    patches.apply()
    patches.remove()
    patches.remove()
    assert log == ["+a", "+b", "-b", "-a"]


def test_a_failing_patch_leaves_none_installed():
    log: list[str] = []
    with pytest.raises(RuntimeError, match="b"):
        Patches([Recorded("a", log), Recorded("b", log, fails=True)]).apply()
    assert log == ["+a", "-a"]
