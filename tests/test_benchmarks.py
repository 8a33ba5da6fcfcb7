"""The benchmarks' own parts: turns, verdicts, documents, generated files, and that both sides do the same work."""

from __future__ import annotations

import json
import shutil
import sys
from types import SimpleNamespace

import bench
import demo_weights
import layout
import pytest
import torch

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_load
import bench_stream
import bench_unpack
import depth_section
import load_folder
import measure_load
import measure_unpack
import rounds
from verdict import Verdict, at_most


def test_cases_take_turns_and_change_their_order(capsys):
    asked = []
    cases = {name: lambda name=name: asked.append(name) or {"seconds": len(asked)} for name in "ab"}
    found = rounds.take_turns(cases, 3)
    assert asked == ["a", "b", "b", "a", "a", "b"] and capsys.readouterr().out == "......\n"
    assert [one["seconds"] for one in found["a"]] == [1, 4, 5]
    assert rounds.median(found["b"], "seconds") == 3
    assert rounds.ratio(found["a"], found["b"], "seconds") == 5 / 6


def test_measurement_that_fails_is_an_error_with_its_last_words():
    with pytest.raises(RuntimeError, match=r"from `.*measure_unpack\.py nobody`, got exit status 2:(.|\n)*usage"):
        rounds.run("measure_unpack.py", "nobody")


def test_targets_are_met_missed_or_not_known():
    assert at_most("time", 0.8, 0.8) == (True, "time: 0.8x (at most 0.8x)")
    assert at_most("time", 0.81, 0.8) == (False, "time: 0.81x (at most 0.8x)")
    assert at_most("bytes", None, 1.01)[0] is None
    assert not at_most("error", float("nan"), 1.0)[0]


def test_verdict_is_missed_by_one_target_and_written_without_paths(tmp_path):
    verdict = Verdict("load", ["a line"], [(True, "x"), (False, "y"), (None, "z")], {"seconds": 0.123456, "of": [1]})
    assert not verdict.passed and verdict.text() == "  a line\n  PASS  x\n  MISS  y\n  NOT MEASURED  z"
    written = json.loads(verdict.write(0.5, tmp_path).read_text())
    assert written["figures"] == {"seconds": 0.1235, "of": [1]} and written["load_average"]["before"] == 0.5
    assert {"processor", "cores", "memory_gb", "torch"} <= written["machine"].keys()
    assert "/" not in json.dumps(written["machine"]).replace("w/", "")


def test_committed_results_name_no_machine():
    for path in (layout.ROOT / "benchmarks" / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert {"machine", "load_average", "targets", "figures"} == json.loads(text).keys(), path.name
        assert str(layout.ROOT) not in text and "/home" not in text


def test_unknown_benchmark_and_no_round_are_refused(capsys):
    assert bench._arguments([]).names == [] and bench._arguments(["load", "--rounds", "2"]).rounds == 2
    for arguments in (["loud"], ["load", "--rounds", "0"]):
        with pytest.raises(SystemExit):
            bench._arguments(arguments)
        assert f"expected benchmarks among {', '.join(bench.NAMES)}" in capsys.readouterr().err
    for name in bench.NAMES:
        assert (layout.ROOT / "benchmarks" / f"bench_{name}.py").is_file()


def test_load_folder_is_laid_out_as_the_release():
    shapes = demo_weights.tensor_shapes(load_folder.config())
    shards = {demo_weights.shard_of(name) for name in shapes}
    assert len(shards) == 14 and load_folder.config()["text_config"]["num_hidden_layers"] == 64
    needed = [n for n in shapes if demo_weights.single_file_name(n)]
    size = demo_weights.payload_bytes([(n, n, shapes[n]) for n in needed])
    assert 3e9 < size < 4e9
    assert not {demo_weights.shard_of(n) for n in needed} & {f"model-{i:05d}-of-00014.safetensors" for i in (12, 13)}


def test_load_folder_is_refused_without_space(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(RuntimeError, match=r"bench: expected 6\.\d GB of free disk .*got 1\.0 GB\. Free some space"):
        load_folder.make_load_folder(tmp_path / "load")


@pytest.mark.parametrize("what", ["mmap", "read", "transformers"])
def test_every_loader_loads_and_touches_the_needed_weights(tiny_checkpoint, what):
    pytest.importorskip("transformers.models.qwen3_vl")
    load, tensors_of = measure_load.loader(what, tiny_checkpoint, 5)
    found = measure_load.touch(tensors_of(load()))
    needed = measure_load.touch(measure_load.loader("mmap", tiny_checkpoint, 5)[1](load())) if what == "mmap" else found
    assert found == needed and found > 0


def test_transformers_loads_the_same_bytes_but_for_its_final_norm(tiny_checkpoint):
    pytest.importorskip("transformers.models.qwen3_vl")
    size = {}
    for what in ("mmap", "transformers"):
        load, tensors_of = measure_load.loader(what, tiny_checkpoint, 5)
        size[what] = measure_load.touch(tensors_of(load()))
    assert size["transformers"] - size["mmap"] == 64 * 2


@pytest.mark.parametrize("name", measure_unpack.FORMATS)
def test_both_sides_unpack_the_same_matrix(name, monkeypatch):
    pytest.importorskip("gguf" if name in measure_unpack.GGML_SCALES else "comfy_kitchen")
    monkeypatch.setattr(measure_unpack, "SHAPE", (256, 512))
    stored = measure_unpack.parts(name)
    ours, theirs = (side(name, stored)().float() for side in (measure_unpack.ours, measure_unpack.theirs))
    assert ours.shape == theirs.shape == (256, 512) and bool(torch.isfinite(ours).all()) and float(ours.std()) > 0
    assert float((ours - theirs).norm() / theirs.norm()) < bench_unpack.SAME


def test_other_result_is_an_error_of_the_benchmark():
    bench_unpack._check_same(1.0, 1.005, "nvfp4")
    with pytest.raises(RuntimeError, match=r"both sides to unpack the same nvfp4 matrix, got norms 1 and 2"):
        bench_unpack._check_same(1.0, 2.0, "nvfp4")


def test_unpack_without_the_other_side_is_told_not_missed():
    row = bench_unpack._row("nvfp4", [{"seconds": 1.0, "peak": 100, "norm": 1.0}])
    assert bench_unpack._speed(row, "nvfp4")[0] is None
    assert "nvfp4" in bench_unpack._lines({"nvfp4": row | {"against": "comfy-kitchen"}})[1]


def test_load_targets_are_the_projects_own():
    row = {"seconds_to_transformers": 0.9, "read_to_needed": None, "peak_to_needed": 1.0}
    assert [met for met, _ in bench_load._targets(row)] == [False, None, True]


def test_streaming_that_grows_with_depth_is_a_miss():
    private = {8: 9e8, 16: 1e9}
    rows = {f"stream {depth}": {"private": size, "equal_to_streamed": True} for depth, size in private.items()}
    assert [met for met, _ in bench_stream._targets(rows)] == [False, True, True]
    rows["stream 8"]["equal_to_streamed"] = False
    assert [met for met, _ in bench_stream._targets(rows)] == [False, True, False]


def report(error: float) -> dict:
    parts = ["images: vision block 4", "images: merger", "decoder input", "layer 0", "layer 1"]
    against = [{"part": part, "relative": error, "max_abs": error} for part in parts]
    return {"decoder_layers": 2, "tokens": 7, "dtype": "float32", "torch": "2", "against": against}


def test_section_is_replaced_and_the_rest_is_kept(tmp_path):
    document, picture = tmp_path / "parity.md", tmp_path / "packed.png"
    document.write_text("# Parity\n\nText.\n", encoding="utf-8")
    depth_section.write({"nvfp4_awq": report(0.1), "int8_convrot": report(0.0)}, document, picture)
    first = document.read_text(encoding="utf-8")
    assert first.startswith("# Parity\n\nText.\n\n") and "## Packed files against bf16" in first
    assert "| layer 1 | 0.1000 | 0 (bit-equal) |" in first and "vision block 4" not in first
    assert "(packed.png)" in first and picture.read_bytes().startswith(b"\x89PNG")
    depth_section.write({"nvfp4_awq": report(0.2)}, document, picture)
    second = document.read_text(encoding="utf-8")
    assert second.count("## Packed files against bf16") == 1 and "| layer 1 | 0.2000 |" in second
    assert second.startswith("# Parity\n\nText.\n\n")
