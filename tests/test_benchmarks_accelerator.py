"""The accelerator script at tiny size on the CPU: every part is measured, and what fails is named."""

from __future__ import annotations

import json
import sys

import layout
import pytest
import torch

sys.path.append(str(layout.ROOT / "benchmarks"))
import accelerator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict:
    pytest.importorskip("transformers.models.qwen3_vl")
    out = tmp_path_factory.mktemp("accelerator") / "found.json"
    options = ["--device", "cpu", "--tiny", "--repeats", "1", "--layers", "4", "--out", str(out)]
    assert accelerator.main(options) == 0
    return json.loads(out.read_bytes())


def test_every_part_is_measured(written):
    assert written["layers"] == 4 and written["machine"]["device"] == "cpu"
    parts = written["parts"]
    assert parts.keys() == {"weights", "official model", "prompt", "keyframes", "streaming", "unpack"}
    for name in ("prompt", "keyframes"):
        assert {"to_official", "to_floor", "tflops", "peak_bytes"} <= parts[name].keys()
        assert parts[name]["seconds"] > 0 and parts[name]["tflops"] > 0


def test_both_models_compute_the_same(written):
    assert written["parts"]["prompt"]["difference"] == 0
    assert written["parts"]["keyframes"]["difference"] < 2e-2


def test_streamed_layers_give_the_bits_of_resident_ones(written):
    found = written["parts"]["streaming"]
    assert found["bits_equal"] and (found["layers"], found["streamed_layers"]) == (4, 3)
    assert found["streamed_bytes"] == 3 * 2 * (2 * 64 * 512 + 2 * 64 * 256 + 3 * 64 * 160)


def test_unpacking_is_measured_beside_the_product(written):
    found = written["parts"]["unpack"]
    assert all(
        found[kind]["seconds"] > 0 and found[kind]["to_product"] > 0 for kind in ("int8", "int8_convrot", "nvfp4")
    )


def test_requests_are_those_of_the_other_benchmarks():
    import shapes

    for name, (tokens, pictures) in accelerator.REQUESTS.items():
        assert tokens == shapes.SHAPES[name].tokens
        assert tuple((columns * 16, rows * 16) for columns, rows in pictures) == shapes.SHAPES[name].pictures
    assert len(accelerator.request(*accelerator.REQUESTS["keyframes"])["input_ids"]) == 2344


def test_sizes_are_the_released_ones():
    from h3te_tests.checkpoint_files import released_config

    for tokens, of in (("text_config", 50), ("vision_config", 50)):
        mine, released = accelerator.config(of, False)[tokens], released_config(layers=of)[tokens]
        assert {name: released[name] for name in mine if name in released} == {
            name: value for name, value in mine.items() if name in released
        }


def test_operations_are_counted_by_hand():
    encoder = accelerator.build(CPU, 2, True)
    layer = 2 * 64 * 512 + 2 * 64 * 256 + 3 * 64 * 160
    text = 2 * 10 * 2 * layer + 2 * 2 * 10**2 * 4 * 128
    assert accelerator.flops_of(encoder, 10, ()) == text
    blocks = 1536 * 144 + 4 * (4 * 144**2 + 2 * 144 * 256)
    mergers = 4 * (576 * 576 + 576 * 64)
    vision = 2 * 32 * blocks + 2 * 8 * mergers + 4 * 32**2 * 144 * 4
    assert accelerator.flops_of(encoder, 10, (32,)) == text + vision


def test_depth_is_what_fits(monkeypatch):
    assert accelerator.depth_that_fits(CPU, 50, 1e9, 3e9) == 50
    monkeypatch.setattr(accelerator, "free_memory", lambda device: 24e9)
    assert accelerator.depth_that_fits(CPU, 50, 1e9, 3e9) == 12
    monkeypatch.setattr(accelerator, "free_memory", lambda device: 4e9)
    assert accelerator.depth_that_fits(CPU, 50, 1e9, 3e9) == 1


def failing():
    raise RuntimeError("out of memory")


def test_a_part_that_fails_or_comes_too_late_is_named(capsys):
    report = accelerator.Report(minutes=1)
    assert report.measure("first", failing) is None
    assert report.measure("second", lambda: {"seconds": 1})["seconds"] == 1
    assert report.found["first"]["not_measured"] == "RuntimeError: out of memory"
    late = accelerator.Report(minutes=0)
    assert late.measure("late", failing) is None and late.found["late"]["not_measured"] == "no time was left"
    assert "out of memory" in capsys.readouterr().out


def test_no_such_device_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        accelerator.main([])
    assert "expected a CUDA or ROCm device, got none. Name another with --device" in capsys.readouterr().err
