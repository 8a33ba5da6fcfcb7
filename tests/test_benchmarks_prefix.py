"""Prefix reuse measured at tiny size: what is compared, targets, and what is told of other work."""

from __future__ import annotations

import json
import sys

import layout
import pytest

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_prefix
import measure_prefix
from measure_prefix import EDITS, Edit, measure

SMALL = (256, 256)
TINY = {
    "prompt": Edit((SMALL,) * 2, (SMALL,) * 2, same_prompt=False, tokens=9),
    "appended": Edit((SMALL,), (SMALL,) * 2, tokens=9),
    "keeping": Edit(None, (SMALL,), tokens=9),
}
PICTURE_TOKENS = 72  # with label and markers


@pytest.mark.parametrize(("edit", "reused"), [("prompt", 2 * PICTURE_TOKENS + 1), ("appended", 72), ("keeping", 0)])
def test_edit_is_measured_fresh_and_with_what_was_kept(tiny_checkpoint, tokenizer_folder, edit, reused):
    found = measure(TINY[edit], tiny_checkpoint, 5, tokenizer_folder, 2)
    assert found["tokens"] == PICTURE_TOKENS * len(TINY[edit].after) + 9
    assert found["reused"] == reused and found["held"] > 0 and found["difference"] <= 0.02
    for times in (found["seconds"], found["decoder"]):
        assert {side: len(of) for side, of in times.items()} == {"fresh": 2, "kept": 2}
    assert min(found["decoder"]["kept"]) > 0
    json.dumps(bench_prefix.row([found, found]))


def test_edits_are_those_of_the_targets():
    assert EDITS.keys() == bench_prefix.NAMES.keys() == bench_prefix.REPEATS.keys()
    prompt, appended = EDITS["prompt"], EDITS["appended"]
    assert prompt.before == prompt.after == (measure_prefix.KEYFRAME,) * 2 and not prompt.same_prompt
    assert appended.after == (*appended.before, measure_prefix.REFERENCE) and len(appended.before) == 8


def a_row(kept_to_fresh: float) -> dict:
    ratios = {"kept_to_fresh": kept_to_fresh, "kept_to_fresh_at_50": kept_to_fresh}
    times = {"fresh": 1.0, "kept": kept_to_fresh}
    return {"tokens": 9, "reused": 7, "held": 1e9, "difference": 0.01, "seconds": times, **ratios}


@pytest.mark.parametrize(
    ("ratios", "met"),
    [((1 / 9.1, 1 / 6.1, 1.02), [True] * 3), ((1 / 8.9, 1 / 5.9, 1.04), [False] * 3), ((0.1, 0.2, 0.9), [1, 0, 1])],
)
def test_targets_are_the_projects_own(ratios, met):
    rows = {edit: a_row(ratio) for edit, ratio in zip(bench_prefix.NAMES, ratios, strict=True)}
    assert [of for of, _ in bench_prefix.targets_of(rows)] == met
    text = bench_prefix.lines(rows)
    assert len(text) == 4 and f"{1 / ratios[0]:.2f}x" in text[1]


def test_ratios_are_medians_of_pairs_and_layers_are_extrapolated():
    rounds = [
        {"tokens": 9, "reused": 7, "held": 1, "difference": difference, "seconds": {"fresh": fresh, "kept": [1.0, 1.0]},
         "decoder": {"fresh": [4.0, 4.0], "kept": [0.4, 0.4]}}
        for difference, fresh in ((0.01, [10.0, 20.0]), (0.015, [5.0, 10.0]))
    ]  # fmt: skip
    found = bench_prefix.row(rounds)
    assert found["kept_to_fresh"] == pytest.approx(0.1) and found["difference"] == 0.015
    assert found["kept_to_fresh_at_50"] == pytest.approx((1 + 0.4 * 11.5) / (10 + 4 * 11.5), rel=0.1)


def test_other_hidden_states_are_an_error_of_the_benchmark():
    assert bench_prefix.checked("prompt", {"difference": 0.01}) == {"difference": 0.01}
    for wrong in (0.03, float("nan")):
        with pytest.raises(RuntimeError, match=r"expected the same hidden states of the edit prompt .*relative L2 "):
            bench_prefix.checked("prompt", {"difference": wrong})
