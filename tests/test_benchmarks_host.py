"""The comparison with ComfyUI's own encoder: what is compared, targets, and what is said where there is none.

Its encoder itself needs a newer ComfyUI: tests/h3_host/test_benchmarks_own.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import layout
import pytest
import torch
from safetensors.torch import save_file

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_host
import charts
import host_files
import rounds


def test_comfyui_without_an_own_encoder_is_told_not_missed(tmp_path):
    verdict = bench_host.bench(1, tmp_path)
    assert verdict.passed and {met for met, _ in verdict.targets} == {None}
    assert len(verdict.targets) == len(bench_host.CASES) and "set COMFYUI_PATH to ComfyUI 0.30" in verdict.lines[0]


def found(kind: str, ours: float) -> dict:
    times = {"cold": 2.0, "warm": 1.0}
    one = {"tokens": 7, "peak": 1e9}
    return {"ours": [one | {n: t * ours for n, t in times.items()}] * 2, "theirs": [one | times] * 2}


@pytest.mark.parametrize(
    ("kind", "ours", "met"),
    [
        ("bf16", 0.18, [True]), ("bf16", 0.19, [False]), ("nvfp4_awq", 0.35, [True, True]),
        ("nvfp4_awq", 0.36, [True, False]), ("int8_convrot", 0.51, [False, False]),
    ],
)  # fmt: skip
def test_targets_are_the_projects_own(kind, ours, met):
    row = bench_host.row(found(kind, ours), kind)
    assert [of for of, _ in bench_host.targets_of(f"{kind}, prompt", row)] == met


def test_table_and_chart_show_every_case(tmp_path):
    rows = {f"{k}, prompt": bench_host.row(found(k, 0.3), k) | {"difference": 0.01} for k in ("bf16", "nvfp4_awq")}
    text = bench_host.lines(rows)
    assert len(text) == 3 and "0.30" in text[1] and len(text[1]) == len(text[2])
    charts.ratios({"a": 0.3, "b": 0.6}, {"a": 0.5, "b": 0.5}, tmp_path / "host.png", "ratios")
    assert (tmp_path / "host.png").read_bytes().startswith(b"\x89PNG")


def test_other_conditioning_is_an_error_of_the_benchmark(tmp_path):
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    save_file({"hidden": torch.ones(3, 2)}, one)
    save_file({"hidden": torch.full((3, 2), 1.05)}, other)
    assert bench_host.compared(one, other, "tiny")["difference"] < bench_host.SAME
    for wrong in (torch.full((3, 2), 1.5), torch.ones(4, 2)):
        save_file({"hidden": wrong}, other)
        with pytest.raises(RuntimeError, match="expected the same conditioning of tiny from both encoders"):
            bench_host.compared(one, other, "tiny")


def test_cold_files_are_dropped_from_memory_before_each_measurement(monkeypatch, tmp_path):
    asked, dropped = [], []
    monkeypatch.setattr(bench_host, "run", lambda *arguments, **options: asked.append(arguments) or {})
    monkeypatch.setattr(bench_host, "_forget", dropped.append)
    out = dict.fromkeys(bench_host.SIDES, tmp_path / "out")
    for kind, cold in (("bf16", False), ("nvfp4_awq", True)):
        cases = bench_host._cases(Path("file"), kind, "prompt", tmp_path, out)
        rounds.take_turns(cases, 2)
        assert [("--cold" in arguments) for arguments in asked] == [cold] * 4
        assert dropped == [Path("file")] * 4 * cold
        asked.clear()


def test_single_file_is_written_once_and_refused_without_space(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(host_files, "WIDE", tmp_path)
    monkeypatch.setattr(host_files, "bf16_folder", lambda: tiny_checkpoint)
    with monkeypatch.context() as patched:
        patched.setitem(host_files.KINDS, "bf16", 1e18)
        with pytest.raises(RuntimeError, match=r"bench host: expected \d+\.\d GB of free disk .*Free some space"):
            host_files.single_file("bf16")
    file = host_files.single_file("bf16")
    before = file.stat().st_mtime_ns
    assert host_files.single_file("bf16") == file and file.stat().st_mtime_ns == before
