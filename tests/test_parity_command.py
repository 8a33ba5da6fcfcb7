"""The parity command: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

import parity
import parity_report
from h3te_tests.demo_host import demo_folder  # noqa: F401 (fixture)
from official_path import OfficialPath
from packed_files import write_packed
from parity_ours import OurParts


def command(*arguments: str) -> SimpleNamespace:
    return parity._arguments([str(argument) for argument in arguments])


def test_command_leaves_report_and_plot_and_says_pass(demo_folder, comfy_folder, tmp_path, capsys):  # noqa: F811
    parsed = command(demo_folder, "--layers", 3, "--request", "text", "--against", demo_folder)
    assert parity.run(parsed, comfy_folder, tmp_path) == 0
    printed = capsys.readouterr().out
    assert "PASS  token ids equal transformers'" in printed
    assert "PASS  layer 2: same input 0 (bit-equal); accumulated 0 (bit-equal)" in printed
    assert "PASS  layer x 3: same input 0 (bit-equal), limit 0; accumulated 0 (bit-equal), limit 0" in printed
    assert "parity: PASS" in printed and "peak memory above the start" in printed and "demo weights" in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] and report["demo_weights"] and len(report["rows"]) == 4
    assert {row["relative"] for row in report["against"]} == {0}
    assert report["memory"]["largest_part"] > 0 and report["memory"]["resident_peak"] >= 0
    assert str(tmp_path) not in json.dumps(report)
    assert "| layer 2 | 0 (bit-equal) | 0 (bit-equal) | 0 (bit-equal) |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_command_fails_and_names_the_part(demo_folder, comfy_folder, tmp_path, capsys, monkeypatch):  # noqa: F811
    read, changed = OfficialPath.read, "model.language_model.layers.1.self_attn.v_proj.weight"
    monkeypatch.setattr(OfficialPath, "read", lambda self, name: read(self, name) * (1.01 if name == changed else 1))
    parsed = command(demo_folder, "--layers", 3, "--request", "text", "--prompt", "A fox.", "--dtype", "float32")
    assert parity.run(parsed, comfy_folder, tmp_path) == 1
    assert "parity: FAIL: first in layer 1, 2 in all" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["passed"] and report["dtype"] == "float32"


def test_other_checkpoint_of_another_width_is_refused(demo_folder, tiny_checkpoint):  # noqa: F811
    encoders = [
        OurParts(path, tokenizer=None, dtype=torch.bfloat16, layers=1).encoder
        for path in (demo_folder, tiny_checkpoint)
    ]
    widths = rf"hidden sizes {encoders[0].config.text.hidden_size} and 64\)\. Name two files"
    with pytest.raises(ValueError, match=rf"expected --against to name another file of the same model.*{widths}"):
        parity._check_same_model(*encoders, tiny_checkpoint)


def test_packed_file_against_the_bf16_folder_tells_the_error_by_depth(demo_folder, comfy_folder, tmp_path, capsys):  # noqa: F811
    packed = write_packed(demo_folder, tmp_path / "packed.safetensors", "int8_convrot")
    parsed = command(demo_folder, "--against", packed, "--layers", 3, "--request", "text")
    assert parity.run(parsed, comfy_folder, tmp_path) == 0
    errors = json.loads((tmp_path / "report.json").read_text())["against"]
    depth = [row["relative"] for row in errors if row["part"].startswith("layer")]
    assert len(depth) == 3 and all(1e-4 < error < 0.1 for error in depth)
    assert "packed.safetensors against" in capsys.readouterr().out


def test_unserved_packed_file_is_refused_with_the_loaders_words(demo_folder, comfy_folder, tmp_path):  # noqa: F811
    packed = write_packed(demo_folder, tmp_path / "packed.safetensors", "mxfp8")
    with pytest.raises(ValueError, match=r"packed\.safetensors: expected nvfp4, int8.*got mxfp8"):
        parity.run(command(demo_folder, "--against", packed), comfy_folder, tmp_path)


@pytest.mark.parametrize("layers", [0, 51])
def test_layers_out_of_range_are_refused(demo_folder, comfy_folder, tmp_path, layers):  # noqa: F811
    with pytest.raises(ValueError, match=rf"expected --layers from 1 to 50, got {layers}\. Leave it out for all 50"):
        parity.run(command(demo_folder, "--layers", layers), comfy_folder, tmp_path)


def test_request_without_any_token_is_refused(demo_folder, comfy_folder, tmp_path):  # noqa: F811
    parsed = command(demo_folder, "--request", "text", "--prompt", "")
    with pytest.raises(ValueError, match=r"expected a prompt or pictures, got neither.*Give --prompt some text"):
        parity.run(parsed, comfy_folder, tmp_path)


def test_missing_checkpoint_is_said_by_path(comfy_folder, tmp_path):
    with pytest.raises((ValueError, OSError), match=r"expected a file or folder at .*absent, got none"):
        parity.run(command(tmp_path / "absent"), comfy_folder, tmp_path)


def test_inputs_that_differ_fail_the_report():
    report = parity_report.Report({}, {"token ids equal transformers'": False}, [], [], {}, False)
    assert not report.passed


def test_released_folders_are_told_apart_by_their_parent():
    assert parity_report._short(Path("models", "MiniMax-H3", "text_encoder")) == "MiniMax-H3/text_encoder"
    assert parity_report._short(Path("models", "one.safetensors")) == "one.safetensors"
