"""The endurance run's own parts: the mix of steps, their graphs, what counts as equal, what counts as growth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import endurance
import endurance_graphs
import endurance_kills
import endurance_measure
import endurance_report
import endurance_steps
import pytest
import torch
from comfy_client import PromptFailed
from endurance_measure import Footprint, growth
from endurance_run import Outcome, Run
from endurance_steps import CHECKPOINTS, DOES, ERRORS, KINDS, Request, Settings, Step, plan
from endurance_verdict import Verdict, same, verdict

VALUES = {"bf16": "folder/", "nvfp4_awq": "packed.safetensors"}
PROBE = "H3TEConditioningProbe"


# steps


def test_plan_is_decided_by_its_seed():
    assert plan(11, 40) == plan(11, 40) != plan(12, 40)
    assert plan(11, 60)[:40] == plan(11, 40)


def test_plan_of_300_has_everything_that_it_promises():
    steps = plan(11, 300)
    assert [step.number for step in steps] == list(range(300))
    assert {step.does for step in steps} == set(DOES) and {step.request.kind for step in steps} == set(KINDS)
    assert {step.settings.checkpoint for step in steps} == set(CHECKPOINTS)
    assert {step.settings.budget for step in steps} == set(endurance_steps.BUDGETS)
    assert {step.detail for step in steps if step.does == "error"} == set(ERRORS)
    assert any(step.settings.lora for step in steps) and any(step.settings.exact for step in steps)
    again = Counter(step.identity for step in steps if step.does == "encode")
    assert max(again.values()) > 1 and len(again) > 60


def test_plan_loads_only_what_an_earlier_step_saved():
    steps = plan(3, 300)
    loads = [step for step in steps if step.does == "load"]
    assert loads and all(steps[int(step.detail)].does == "save" and int(step.detail) < step.number for step in loads)


# graphs


def linked(graph: dict) -> bool:
    """Whether every link leads to a node that is there."""
    links = [value for one in graph.values() for value in one["inputs"].values() if isinstance(value, list)]
    return all(name in graph for name, _ in links)


@pytest.mark.parametrize("does", ["encode", "preview", "save"])
def test_graphs_of_every_kind_hang_together(does):
    seen = set()
    for step in plan(5, 300):
        if step.does == does:
            graph = endurance_graphs.graph(step, "r", VALUES)
            seen.add(step.request.kind)
            assert linked(graph) and linked(endurance_graphs.fresh(step, "f", VALUES))
            assert (PROBE in {one["class_type"] for one in graph.values()}) == (does != "preview")
    assert len(seen) > 2


@pytest.mark.parametrize("what", ERRORS)
def test_broken_graphs_hang_together_and_name_what_is_wrong(what):
    for request in (Request("text", ("a",)), Request("list", ("a", "b"), ("lighthouse.jpg",))):
        graph, named = endurance_graphs.broken(Step(1, "error", request, Settings(), what), "r", VALUES)
        assert linked(graph) and named


def test_fresh_encode_keeps_and_reuses_nothing_and_packs_as_the_run_did():
    step = Step(1, "encode", Request("text", ("a",)), Settings(exact=False, budget=10, reader="stream", unload=True))
    options = endurance_graphs.fresh(step, "f", VALUES)["options"]["inputs"]
    assert options["conditioning_cache"] == "off" and 0 < options["prefix_cache_gb"] < 1e-9
    assert options["reader"] == "auto" and "budget" not in endurance_graphs.fresh(step, "f", VALUES)
    whole = replace(step, settings=replace(step.settings, prefixes=False))
    assert endurance_graphs.fresh(whole, "f", VALUES)["options"]["inputs"]["prefix_cache_gb"] == 0


# verdicts


def found(*values: float) -> dict:
    return {"hidden": torch.tensor([[values]]), "tags": torch.zeros(1, dtype=torch.int64)}


FRESH, EXACT = found(1.0, 2.0, 3.0), found(1.01, 2.01, 3.01)
NEAR, FAR = found(1.0, 2.0, 3.001), found(1.0, 2.0, 3.3)


@pytest.mark.parametrize(
    ("ours", "exact", "whole", "said", "earlier", "kind"),
    [
        (FRESH, EXACT, True, "miss", [], "bit"),
        (NEAR, EXACT, True, "prefix 40 of 60 tokens", [], "wrong"),
        (NEAR, EXACT, False, "miss", [], "wrong"),
        (NEAR, EXACT, False, "1 picture seen before", [], "wrong"),
        (NEAR, EXACT, False, "prefix 40 of 60 tokens", [], "rounding"),
        (NEAR, EXACT, False, "", [], "rounding"),
        (FAR, EXACT, False, "prefix 40 of 60 tokens", [], "wrong"),
        (NEAR, EXACT, False, "hit (RAM)", [FAR], "wrong"),
        (NEAR, EXACT, False, "hit (RAM)", [FAR, NEAR], "rounding"),
        (NEAR, None, False, "prefix 40 of 60 tokens", [], "wrong"),
        (found(1.0, 2.0), EXACT, False, "prefix 40 of 60 tokens", [], "wrong"),
        ({**FRESH, "tags": torch.ones(1, dtype=torch.int64)}, EXACT, False, "", [], "wrong"),
    ],
)
def test_result_is_held_to_what_the_docs_promise(ours, exact, whole, said, earlier, kind):
    assert verdict(ours, FRESH, exact, whole, said, earlier).kind == kind


def test_same_is_to_the_bit_of_every_tensor():
    assert same(FRESH, {key: value.clone() for key, value in FRESH.items()})
    assert not same(FRESH, NEAR) and not same(FRESH, {"hidden": FRESH["hidden"]})


# what is left behind


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0),
        ([100], 0),
        ([100, 103], 0.03),
        ([100, 900, 100, 110, 110, 5], 0.1),
        ([200, 200, 200, 100, 100, 100], -0.5),
    ],
)
def test_growth_is_of_medians(values, expected):
    assert growth(values) == pytest.approx(expected)


def test_footprint_finds_unfinished_files(tmp_path):
    import os

    for name in ("a.safetensors", ".h3te-1.tmp", "b.safetensors.1.partial"):
        (tmp_path / name).touch()
    held = endurance_measure.footprint(os.getpid(), [tmp_path], tmp_path)
    assert len(held.unfinished) == 2 and held.temporary == 3
    assert held.rss > 0 and held.threads > 0 and held.handles > 0


def rest(number: int, **changed) -> tuple[int, Footprint]:
    return number, replace(Footprint(10**9, 10**9, 10, 5, 0, (), 0), **changed)


STEP = Step(299, "encode", Request("text", ("a",)), Settings())


@pytest.mark.parametrize(
    ("last", "failing"),
    [
        ({}, set()),
        ({"rss": int(1.03e9)}, {"Memory"}),
        ({"handles": 14}, {"handles"}),
        ({"threads": 9}, {"threads"}),
        ({"children": 1}, {"children"}),
        ({"temporary": 1}, {"temporary"}),
        ({"unfinished": ("x.tmp",)}, {"unfinished"}),
    ],
)
def test_what_stays_behind_fails_its_own_claim(last, failing):
    run = Run([Outcome(STEP, "done")], [rest(60), rest(120), rest(300, **last)])
    claims = [claim for claim in endurance_report._held(run) if not claim.passed]
    assert len(claims) == len(failing) and all(any(word in claim.what for word in failing) for claim in claims)


def test_run_that_is_too_short_to_tell_fails():
    run = Run([Outcome(STEP, "done")], [rest(300)])
    assert [claim.passed for claim in endurance_report._held(run)] == [False]


def test_report_tells_failures_and_wrong_results(tmp_path, capsys):
    outcomes = [Outcome(STEP, "done"), Outcome(replace(STEP, number=300), "failed", "ValueError: no")]
    verdicts = [(outcomes[0], "endurance_0299", Verdict("wrong", 0.5, "expected every bit"))]
    run = Run(outcomes, [rest(60), rest(300)], [rest(60), rest(300)])
    claims = endurance_report.keep(run, verdicts, "", {"fresh encodes": 1}, tmp_path)
    assert endurance_report.close(claims, tmp_path, 1) == 1
    said = capsys.readouterr().out
    assert "step 300: ValueError: no" in said and "1 wrong, first endurance_0299: expected every bit" in said
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "memory.png"}


def test_nothing_compared_is_no_pass(tmp_path):
    assert endurance_report.close([], tmp_path, 1) == 1
    assert not endurance_report._equal([], {"fresh encodes": 0}).passed


# kills


def test_unfinished_files_of_a_kill_are_made_old_and_told_from_new_ones(tmp_path):
    old, new = tmp_path / "a.partial", tmp_path / "b.partial"
    for path in (old, new):
        path.touch()
    endurance_kills._make_old([old])
    assert endurance_kills._is_old(old) and not endurance_kills._is_old(new)


def test_loading_that_is_refused_is_damage():
    class Server:
        def run(self, graph):
            raise PromptFailed("expected kill_0_of_0_00001_.safetensors as it was saved", {})

    seen = endurance_kills.Seen()
    endurance_kills._load(Server(), endurance_kills.SAVED / "kill_0_of_0_00001_.safetensors", {}, seen)
    assert seen.loaded == 0 and len(seen.damaged) == 1
    assert [claim.passed for claim in endurance_kills._claims(seen, True)] == [False, False, False, True]


def test_command_line_has_the_length_that_the_documents_say():
    parsed = endurance._arguments([])
    assert (parsed.prompts, parsed.kills, parsed.only) == (300, 8, None)
