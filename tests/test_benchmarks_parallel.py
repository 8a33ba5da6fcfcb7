"""Ranks and a worker measured at tiny size: what is counted, targets, and the scaling page's numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import layout
import pytest
import torch

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_parallel
import measure_parallel
import measure_remote
import scaling_model
import scaling_page
import scaling_tables
from peers import Ours
from scaling_model import Link, Machine, Work, first_false, pays_until
from shapes import Shape
from verdict import rounded

LAYERS = 5
TINY = Shape(9, ((256, 256),))


@pytest.fixture(scope="module")
def shared_checkpoint(tmp_path_factory):
    from h3te_tests.tiny_weights import divisible_config, write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("shared") / "text_encoder", divisible_config())


def test_one_rank_reads_what_it_keeps_and_adds_nothing_up(shared_checkpoint, tokenizer_folder, tmp_path):
    found = measure_parallel.measure(0, 1, shared_checkpoint, TINY, LAYERS, tokenizer_folder, tmp_path / "hidden")
    assert found["tokens"] == 72 + 9 and found["bytes_read"] == found["weight_bytes"]
    assert found["sums"] == {"count": 0, "bytes": 0, "seconds": 0} and found["seconds"] > 0
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    row = bench_parallel.row([{"threads": 2, "ranks": [found]}] * 2)
    assert row["read_by_all"] == found["bytes_read"] and row["sums"]["bytes"] == [0]


def test_what_is_given_into_sums_is_counted_in_float32(monkeypatch):
    monkeypatch.setattr("torch.distributed.all_reduce", lambda total, group=None: None)
    parallel, sums = measure_parallel.counting(1, 2)
    parallel.sum(torch.ones(3, 4, dtype=torch.bfloat16))
    parallel.sum(torch.ones(5))
    assert (sums.count, sums.bytes) == (2, 3 * 4 * 4 + 5 * 4) and sums.seconds > 0


def test_failed_rank_is_told_in_its_own_words(tmp_path, monkeypatch):
    script = tmp_path / "rank.py"
    script.write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(measure_parallel, "__file__", str(script))
    with pytest.raises(RuntimeError, match="expected figures of 2 ranks, got an error:\nno memory"):
        measure_parallel.start(2, [])


def test_worker_is_started_asked_and_equal_to_the_bit(tiny_checkpoint, tokenizer_folder):
    with measure_remote.started(tiny_checkpoint, LAYERS) as address:
        peer = Ours(tiny_checkpoint, LAYERS, tokenizer_folder)
        found = measure_remote.measure(peer, address, TINY, 2)
    assert found["equal"] and len(found["local"]) == len(found["remote"]) == len(found["computed"]) == 2
    assert all(remote > inside > 0 for remote, inside in zip(found["remote"], found["computed"], strict=True))
    assert found["alone"]["request_bytes"] > 256 * 3072 and found["alone"]["reply_bytes"] > 81 * 64 * 2
    row = bench_parallel.remote_row(found)
    assert 0 < row["overhead"] < row["remote"] and row["overhead_to_local"] > 1


def test_worker_that_does_not_start_is_told_in_its_own_words():
    command = [sys.executable, "-c", "raise SystemExit('worker: no checkpoint')"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker,
        pytest.raises(RuntimeError, match="expected a worker that is ready, got its end:\nworker: no checkpoint"),
    ):
        measure_remote._address(worker)


ALONE = {"make_request": 0.01, "read_request": 0.01, "make_reply": 0.001, "read_reply": 0.001,
         "request_bytes": 25_000_000, "reply_bytes": 24_000_000}  # fmt: skip
REMOTE = {"tokens": 2344, "equal": True, "alone": ALONE, "local": [20.0, 20.0, 21.0], "remote": [20.5, 20.3, 20.2],
          "computed": [20.3, 20.1, 20.0]}  # fmt: skip


def figures(read: float = 1.0, apart: float = 0.01, summed: float = 1.0, overhead: float = 0.2) -> dict:
    """As `bench` makes them."""
    keep = {"1": 8_000_000, "2": 5_000_000, "4": 3_000_000}

    def row(size: str, tokens: int) -> dict:
        nbytes = 0 if size == "1" else round(summed * scaling_model.reduced_bytes(tokens, 4))
        sums = {"count": 9, "bytes": nbytes, "seconds": 0.1}
        rank = {"tokens": tokens, "seconds": 2.0, "parts": {"decoder": 1.0, "vision": 0.5, "rest": 0.5}, "sums": sums,
                "bytes_read": round(read * keep[size]), "resident": keep[size], "peak": 1000,
                "agree_seconds": 1e-4}  # fmt: skip
        apart_here = 0.0 if size == "1" else apart
        return bench_parallel.row([{"threads": 1, "ranks": [rank] * int(size)}]) | {"difference": apart_here}

    ranks = {
        request: {str(size): row(str(size), tokens) for size in bench_parallel.SIZES}
        for request, tokens in zip(bench_parallel.REQUESTS, (312, 2344), strict=True)
    }
    computed = [seconds - overhead for seconds in REMOTE["remote"]]
    remote = bench_parallel.remote_row({**REMOTE, "computed": computed})
    return {"layers": 4, "width": 5120, "keep": keep, "ranks": ranks, "remote": remote}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"read": 1.02}, [0, 3]),
        ({"apart": 0.03}, [1, 2, 4, 5]),
        ({"summed": 0.9}, [6]),
        ({"overhead": 0.7}, [7]),
    ],
)
def test_targets_are_the_projects_own(changes, missed):
    found = rounded(figures(**changes))
    assert [i for i, (met, _) in enumerate(bench_parallel.targets(found)) if not met] == missed
    text = bench_parallel.lines(found["ranks"], found["remote"])
    assert len(text) == 1 + 6 + 1 and "keyframes, 4 x 1" in text[6] and "through a worker" in text[7]


def test_other_bits_of_a_worker_are_an_error_of_the_benchmark():
    with pytest.raises(RuntimeError, match="expected the same bits from a worker of one rank, got others"):
        bench_parallel.remote_row({**REMOTE, "equal": False})


def test_parts_of_ranks_are_computed_from_shapes(shared_checkpoint):
    from h3te.encoder import load_encoder

    keep, width = bench_parallel.parts_of(shared_checkpoint)
    assert keep.keys() == {"1", "2", "4"} and width == 64
    assert keep["1"] == load_encoder(shared_checkpoint, tap_layer=bench_parallel.LAYERS).weight_bytes


def test_tasks_have_the_tokens_of_the_measured_requests():
    assert [(work.tokens, work.patches) for work in scaling_model.TASKS.values()] == [
        (312, 0),
        (2344, 8064),
        (4029, 14580),
    ]


def test_operations_are_two_a_weight_and_token_beside_attention():
    from h3te.encoder.checkpoint.fit import needed_shapes

    shapes = needed_shapes(scaling_model.released(), scaling_model.LAYERS)
    products = [s for name, s in shapes.items() if ".layers." in name and len(s) == 2]
    assert Work(1).decoder() == pytest.approx(2 * sum(rows * columns for rows, columns in products), rel=1e-4)
    one = [s for name, s in shapes.items() if ".visual.blocks." in name and len(s) == 2]
    tower = Work(4, (4,)).vision() - 27 * 4 * 16 * 1152
    merging = [s for name, s in shapes.items() if "merger" in name and len(s) == 2]
    weights = [sum(rows * columns for rows, columns in of) for of in (one, merging)]
    assert tower == pytest.approx(2 * 4 * weights[0] + 2 * weights[1])


def test_ring_sends_each_byte_nearly_twice():
    link = Link("a link", 10.0, 1e-3)
    assert link.reduce(10**10, 2) == pytest.approx(1 + 2e-3)
    assert link.reduce(10**10, 8) == pytest.approx(1.75 + 14e-3)


def test_shared_beats_streamed_until_sums_take_longer():
    assert first_false(lambda n: n <= 1000) == pytest.approx(1010, rel=0.02)
    assert [first_false(lambda n: False), first_false(lambda n: True)] == [16, scaling_model.MOST_TOKENS]
    machine = Machine(agree=0.0)
    slow, fast = (pays_until(machine, 51.5e9, Link("", gbytes, 0.0), 2) for gbytes in (10.0, 1e6))
    assert 1000 < slow < fast == scaling_model.MOST_TOKENS
    sharing, streaming = (
        call(Work(slow), 51.5e9, *link)
        for call, link in ((machine.parallel, (Link("", 10.0, 0.0), 2)), (machine.streamed, ()))
    )
    assert sharing / streaming == pytest.approx(1 - scaling_model.CLEARLY, rel=0.03)


def test_gpu_that_holds_all_is_never_slower_than_one_that_copies():
    machine, work = Machine(), scaling_model.TASKS["two keyframes"]
    assert machine.whole(work, 51.5e9) <= machine.streamed(work, 51.5e9, 20e9) <= machine.streamed(work, 51.5e9)


def test_page_says_what_is_computed_and_what_the_result_file_says():
    """`python benchmarks/scaling_page.py --write` mends it."""
    text = scaling_page.DOCUMENT.read_text(encoding="utf-8")
    assert scaling_page.page(text, scaling_page.read_result()) == text


def test_measured_section_names_every_request_and_the_worker():
    result = {"machine": {"processor": "a processor", "cores": 2, "torch": "2"}, "figures": figures()}
    text = scaling_page.measured(result)
    assert text.count("\n| prompt, 312 tokens") == text.count("\n| keyframes, 2,344 tokens") == 3
    assert "2,344 tokens, the same bits" in text and "sending 25 MB and 24 MB" in text
    assert scaling_page.measured(json.loads(json.dumps(result))) == text
    assert "Not measured yet" in scaling_page.measured(None)


def test_page_without_marks_is_refused():
    with pytest.raises(ValueError, match=r"expected the marks <!-- assumed --> .* got none\. Put them"):
        scaling_page.page("nothing", None)


def test_assumptions_are_given_on_the_command_line(capsys):
    machine, writes = scaling_page.assumptions(["--tflops", "300", "--pcie", "20"])
    assert (machine.tflops, machine.links[0].gbytes, machine.links[1], writes) == (300, 20, Machine().links[1], False)
    assert scaling_page.assumptions(["--write"]) == (Machine(), True)
    with pytest.raises(SystemExit):
        scaling_page.assumptions(["--write", "--tflops", "300"])
    assert "expected the usual assumptions with --write" in capsys.readouterr().err


def test_bodies_are_as_long_as_the_protocol_makes_them():
    there, back = scaling_tables.body_bytes(scaling_model.TASKS["two keyframes"])
    assert 0 <= there - (8064 * 1536 * 2 + 2344 * 8) < 2000 and 0 <= back - 2344 * (5120 * 2 + 8) < 2000
