"""The patches' registry and a patched method: once, in order, reversibly, above and below other people's wrappers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from h3te.patches import Patches
from h3te.patches.method_patch import RECORDS, MethodPatch

ROOT = Path(__file__).resolve().parents[1]


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


@pytest.fixture
def target() -> type:
    """A class with one method, which notes who was called."""

    class Target:
        def method(self):
            return ["original"]

    return Target


def noting(target: type, note: str = "ours", kind: type = MethodPatch, setting: str = ""):
    """A patch that puts its note (and its owners' settings) before what the original returns."""
    return kind(
        "noting",
        target,
        "method",
        lambda original, owners: lambda self: [note, *filter(None, owners.values()), *original(self)],
        setting,
    )


def wrap_by_hand(target: type, note: str) -> None:
    """What another pack does: keep the method, put another in its place."""
    method = target.method
    target.method = lambda self: [note, *method(self)]


def test_two_installs_are_one_and_stay_until_both_are_gone(target):
    before = dict(vars(target))
    first, second = noting(target), noting(target)
    first.apply()
    first.apply()
    second.apply()
    assert target().method() == ["ours", "original"]
    first.remove()
    first.remove()
    assert target().method() == ["ours", "original"]
    second.remove()
    assert dict(vars(target)) == before


def test_two_copies_of_the_pack_install_once(target):
    copy = load_copy("h3te_second_copy")
    first, second = noting(target), noting(target, "theirs", copy.MethodPatch)
    assert type(first) is not type(second)
    first.apply()
    second.apply()
    assert target().method() == ["ours", "original"]
    first.remove()
    assert target().method() == ["ours", "original"]
    second.remove()
    assert target().method() == ["original"]
    assert RECORDS not in vars(target)


def load_copy(name: str):
    """method_patch.py of the pack, loaded once more under another name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "patches" / "method_patch.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_of_all_owners_are_seen(target):
    quiet, loud = noting(target), noting(target, setting="all")
    quiet.apply()
    assert target().method() == ["ours", "original"]
    loud.apply()
    assert target().method() == ["ours", "all", "original"]
    loud.remove()
    assert target().method() == ["ours", "original"]


def test_a_foreign_wrapper_below_is_kept(target):
    wrap_by_hand(target, "foreign")
    foreign = target.method
    patch = noting(target)
    patch.apply()
    assert target().method() == ["ours", "foreign", "original"]
    patch.remove()
    assert target.method is foreign


def test_a_foreign_wrapper_above_is_kept_and_ours_becomes_a_passage(target):
    patch = noting(target)
    patch.apply()
    wrap_by_hand(target, "foreign")
    foreign = target.method
    patch.remove()
    assert target.method is foreign
    assert target().method() == ["foreign", "original"]


def test_installing_again_under_a_foreign_wrapper_acts_once(target):
    patch, second = noting(target), noting(target)
    patch.apply()
    wrap_by_hand(target, "foreign")
    second.apply()
    assert sorted(target().method()) == ["foreign", "original", "ours"]
    second.remove()
    patch.remove()
    assert target().method() == ["foreign", "original"]


def test_a_foreign_wrapper_that_names_what_it_wraps_is_seen_through(target):
    patch = noting(target)
    patch.apply()
    wrap_by_hand(target, "foreign")
    foreign, foreign.__wrapped__ = target.method, vars(target)[RECORDS]["noting"]["wrapper"]
    patch.apply()
    assert target.method is foreign


def test_a_patch_that_was_overwritten_is_installed_again(target):
    original, patch = target.method, noting(target)
    patch.apply()
    target.method = original
    patch.apply()
    assert target().method() == ["ours", "original"]
    patch.remove()
    assert target().method() == ["original"]


def test_two_patches_of_one_method_go_in_any_order(target):
    first = MethodPatch("first", target, "method", lambda original, _: lambda self: ["first", *original(self)])
    second = MethodPatch("second", target, "method", lambda original, _: lambda self: ["second", *original(self)])
    for patch in (first, second):
        patch.apply()
        patch.apply()
    assert target().method() == ["second", "first", "original"]
    first.remove()
    assert target().method() == ["second", "original"]
    second.remove()
    assert target().method() == ["original"]
    assert RECORDS not in vars(target)


def test_every_patch_says_what_it_patches_and_until_when():
    files = [path for path in (ROOT / "patches").glob("*.py") if "def patch_for(" in path.read_text(encoding="utf-8")]
    assert len(files) == 4
    for path in files:
        text = path.read_text(encoding="utf-8").split('"""')[1]
        assert all(f"\n{heading}: " in text for heading in ("Target", "Reason", "Versions", "Delete when")), path.name
