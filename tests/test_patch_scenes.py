"""The patches on the installed transformers: each scene fails without them and passes with them."""

from __future__ import annotations

import logging
import sys
import threading
import types

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")

import patches_verdict
import transformers
from h3te import patches as patches_package
from h3te.patches import for_transformers, lending, qwen3_vl, tower_device
from h3te.patches.method_patch import RECORDS
from h3te.patches.qwen3_vl import families
from h3te_tests import patch_scenes
from h3te_tests.patch_probe import unlisted
from h3te_tests.patch_scenes import SCENES, casting_leaves, drift, installed, outcome, two_devices_at_once
from h3te_tests.patch_towers import CPU, META, Elsewhere, cast_leaves, first, grids, pixels, tower

FAMILIES = families()
FAMILY = FAMILIES[0]
VERSION = transformers.__version__
MUST_FAIL = patches_verdict.must_fail(VERSION)


@pytest.mark.parametrize("name", SCENES)
def test_scene_fails_unpatched_where_it_should_and_passes_patched(name):
    if name in MUST_FAIL:
        assert outcome(SCENES[name], FAMILY).startswith("fails: ")
    with installed():
        SCENES[name](FAMILY)
    if name in MUST_FAIL:
        assert outcome(SCENES[name], FAMILY).startswith("fails: ")


@pytest.mark.parametrize("family", FAMILIES[1:], ids=lambda family: family.tower.__name__)
def test_siblings_are_patched_too(family):
    assert outcome(casting_leaves, family).startswith("fails: ")
    with installed():
        casting_leaves(family)


def test_every_tower_of_this_shape_is_listed():
    assert unlisted() == []


def test_whatever_is_installed_is_taken_away():
    before = [dict(vars(kind)) for family in FAMILIES for kind in (family.tower, family.text_rotary or object)]
    with installed():
        assert RECORDS in vars(FAMILY.tower)
    assert [dict(vars(kind)) for family in FAMILIES for kind in (family.tower, family.text_rotary or object)] == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_follow_the_closed_form_when_patched(dtype):
    assert (drift(FAMILY, dtype) > 0) == patches_verdict.drifts(VERSION)
    with installed():
        assert drift(FAMILY, dtype) == 0


def test_a_device_noted_on_the_module_is_caught(monkeypatch):
    """The scene with two threads fails for a patch that keeps the device where both can see it."""
    original = FAMILY.tower.forward

    def forward(self, hidden_states, grid_thw, **kwargs):
        self.noted = hidden_states.device
        self.patch_embed(hidden_states)  # both threads have noted theirs before either goes on
        device = self.noted
        children = tower_device._brought_children(self, device)
        if FAMILY.generation != "method":
            kwargs |= tower_device._moved_positions(FAMILY, self, grid_thw, device, kwargs)
        with lending.lent(self, children, {}) as twin:
            return original(twin, hidden_states, grid_thw, **kwargs)

    monkeypatch.setattr(FAMILY.tower, "forward", forward)
    assert outcome(casting_leaves, FAMILY) == "passes"
    assert outcome(two_devices_at_once, FAMILY).startswith("fails: ")


def test_a_call_leaves_nothing_on_the_module():
    built = cast_leaves(tower(FAMILY))
    before, tables = dict(vars(built)), [dict(built._modules), dict(built.pos_embed._parameters)]
    with installed(), torch.no_grad():
        built(pixels(META), grid_thw=grids())
    assert dict(vars(built)) == before
    assert [dict(built._modules), dict(built.pos_embed._parameters)] == tables
    assert built.pos_embed.weight.device == CPU


def test_what_a_call_notes_on_itself_is_kept(monkeypatch):
    """Output capturing of transformers 5 marks the module on which it has put its hooks, once."""
    built = tower(FAMILY)
    with installed(), torch.no_grad():
        counts = [len(_states(built, pixels().as_subclass(Elsewhere))) for _ in range(2)]
        assert counts == [len(_states(built, pixels()))] * 2


def _states(built, x) -> tuple:
    states = getattr(built(x, grid_thw=grids(), output_hidden_states=True), "hidden_states", None)
    if states is None:
        pytest.skip("this release captures no states of the tower")
    return states


def test_in_place_the_original_is_called_with_the_module_itself(monkeypatch):
    built, given = tower(FAMILY), []
    monkeypatch.setattr(lending, "stand_in", lambda *_: given.append(1))
    with installed(), torch.no_grad():
        built(pixels(), grid_thw=grids())
    assert given == []


def test_another_device_gives_every_bit_of_the_same_request_in_place():
    built = tower(FAMILY)
    with torch.no_grad():
        wanted = first(built(pixels(), grid_thw=grids()))
        with installed():
            assert lending.brought(built.pos_embed, "weight", Elsewhere.device) is not None
            assert torch.equal(first(built(pixels().as_subclass(Elsewhere), grid_thw=grids())), wanted)


def test_gradients_reach_a_table_that_was_lent():
    built = tower(FAMILY)
    built.pos_embed.weight.requires_grad_(True)
    with installed():
        first(built(pixels().as_subclass(Elsewhere), grid_thw=grids())).sum().backward()
    assert built.pos_embed.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_foreign_patch_above_or_below_goes_on_working(ours_first):
    calls, method = [], FAMILY.tower.forward
    patches = for_transformers()
    if ours_first:
        patches.apply()
    below = FAMILY.tower.forward
    foreign = lambda self, *args, **kwargs: calls.append(1) or below(self, *args, **kwargs)  # noqa: E731
    FAMILY.tower.forward = foreign
    try:
        patches.apply()
        casting_leaves(FAMILY)
        patches.remove()
        assert outcome(casting_leaves, FAMILY).startswith("fails: ")
        assert len(calls) == 2
        assert FAMILY.tower.forward is foreign
    finally:
        FAMILY.tower.forward = method
        if RECORDS in vars(FAMILY.tower):
            delattr(FAMILY.tower, RECORDS)


def test_an_unknown_version_is_left_alone_and_named(monkeypatch, caplog):
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "6.1.0")
    before = dict(vars(FAMILY.tower))
    with caplog.at_level(logging.WARNING), installed():
        assert dict(vars(FAMILY.tower)) == before
    assert caplog.messages == ["patches: expected transformers 4.57 to 5.x, got 6.1.0. Left alone: nothing is patched."]


def test_a_class_of_unknown_shape_is_left_alone_and_named(monkeypatch, caplog):
    other = types.SimpleNamespace(__name__="other", Tower=type("Tower", (), {"forward": print}), Rotary=None)
    monkeypatch.setattr(qwen3_vl, "CLASSES", {"other": ("Tower", "Rotary")})
    monkeypatch.setattr(qwen3_vl, "_module", lambda name: other)
    with caplog.at_level(logging.WARNING):
        assert families() == ()
    assert caplog.messages == [
        "patches: expected a known shape of Tower and Rotary in other, got another. Left alone: they stay as they are."
    ]


def test_a_sibling_that_cannot_be_imported_is_left_alone_and_named(monkeypatch, caplog):
    def fails(name):
        raise ModuleNotFoundError("No module named 'flux_capacitor'", name="flux_capacitor")

    monkeypatch.setattr(qwen3_vl.importlib, "import_module", fails)
    with caplog.at_level(logging.WARNING):
        assert families() == ()
    assert caplog.messages[0] == (
        "patches: expected to import transformers.models.qwen3_vl.modeling_qwen3_vl, got No module named "
        "'flux_capacitor'. Left alone: it stays as it is."
    )


def test_another_word_for_whose_positions_is_refused():
    with pytest.raises(ValueError, match='expected interpolation "chosen" or "all", got \'ours\''):
        for_transformers("ours")


def test_importing_the_patches_changes_nothing():
    assert patches_package.for_transformers is for_transformers
    assert RECORDS not in vars(FAMILY.tower)


def depth(method) -> int:
    """How many functions a method is wrapped in."""
    return 1 + depth(method.__wrapped__) if hasattr(method, "__wrapped__") else 0


def test_installing_from_many_threads_is_one_install():
    before = depth(FAMILY.tower.forward)
    made = [for_transformers() for _ in range(8)]
    threads = [threading.Thread(target=patches.apply) for patches in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        records = vars(FAMILY.tower)[RECORDS]
        assert {name: len(record["owners"]) for name, record in records.items()} == dict.fromkeys(records, 8)
        assert sum(name in records for name in ("tower_device", "closed_taps")) == depth(FAMILY.tower.forward) - before
    finally:
        for patches in made:
            patches.remove()
    assert RECORDS not in vars(FAMILY.tower)
    assert patch_scenes.outcome(casting_leaves, FAMILY).startswith("fails: ")
