"""The budgets command: its figures are those of the host's patcher, a row tells what is wrong with it, and the demo's
rows are made of it."""

from __future__ import annotations

import json
from pathlib import Path

import budgets
import budgets_device
import budgets_files
import budgets_measure
import budgets_report
import demo_budget_claims
import pytest
import torch
from budgets_report import Row, Table
from h3te_tests.comfy_host import comfy, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.one_device import CPU
from h3te_tests.tiny_weights import TAP_LAYER
from packed_files import write_packed

GOOD = {
    "budget": "50",
    "limit": 500,
    "loaded": 400,
    "held": 400,
    "same": True,
    "peak": 3_000_000,
    "load_seconds": 0.5,
    "seconds": 1.25,
}


def row(**found) -> Row:
    return Row("bf16", 1000, {**GOOD, **found})


def measured(path: Path, tokenizer: Path, reader: str = "mmap") -> dict:
    return budgets_measure.measure(path, tokenizer, ["0", "50", "all"], TAP_LAYER, reader, (64, 64), 1)


def test_right_row_passes():
    assert row().wrong == row(budget="all", limit=None, loaded=1000, held=1000).wrong == []


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"same": False}, "bf16 at 50 %: expected the bits of the encoder without a host, got others"),
        ({"limit": 300}, "bf16 at 50 %: expected at most 300 bytes loaded, got 400"),
        ({"held": 399}, "bf16 at 50 %: ComfyUI counts 400 bytes as loaded, held are 399"),
        ({"budget": "all", "limit": None}, "bf16 at no limit: expected all 1,000 bytes loaded, got 400"),
    ],
)
def test_row_says_what_is_wrong(found, what):
    assert row(**found).wrong == [what]


@pytest.mark.parametrize(("kind", "reader"), [("bf16", "mmap"), ("nvfp4_awq", "stream"), ("int8_convrot", "mmap")])
def test_figures_are_those_of_the_patcher(comfy, tiny_checkpoint, tokenizer_folder, tmp_path, kind, reader):  # noqa: F811
    path = tiny_checkpoint
    if kind != "bf16":
        path = write_packed(tiny_checkpoint, tmp_path / "packed.safetensors", kind, tap=TAP_LAYER)
    found = measured(path, tokenizer_folder, reader)
    rows = [Row(kind, found["weights"], one) for one in found["rows"]]
    assert [one.wrong for one in rows] == [[], [], []]
    nothing, half, everything = (one["loaded"] for one in found["rows"])
    assert nothing == 0 < half <= found["weights"] / 2 < everything == found["weights"]
    assert found["tokens"] > 30


def test_changed_bits_are_seen(comfy, tiny_checkpoint, tokenizer_folder, monkeypatch):  # noqa: F811
    direct = budgets_measure.direct
    monkeypatch.setattr(budgets_measure, "direct", lambda *given: direct(*given) + 1)
    assert not any(one["same"] for one in measured(tiny_checkpoint, tokenizer_folder)["rows"])


def test_stand_in_copies_what_is_loaded_and_gives_it_back(tiny_clip):  # noqa: F811
    tiny_clip.encoder.materialise()
    before = {name: p.data_ptr() for name, p in tiny_clip.cond_stage_model.named_parameters()}
    moved = type(tiny_clip.encoder.model.visual.pos_embed)._moved
    with budgets_device.stand_in_device():
        tiny_clip.patcher.partially_load(CPU, 10**12)
        loaded = {name: p.data_ptr() for name, p in tiny_clip.cond_stage_model.named_parameters()}
        assert all(loaded[name] != before[name] for name in before)
        tiny_clip.patcher.detach()
        assert {name: p.data_ptr() for name, p in tiny_clip.cond_stage_model.named_parameters()} == before
    assert type(tiny_clip.encoder.model.visual.pos_embed)._moved is moved


def test_without_it_a_cpu_moves_nothing(tiny_clip):  # noqa: F811
    """The reason for the stand-in."""
    tiny_clip.encoder.materialise()
    before = {name: p.data_ptr() for name, p in tiny_clip.cond_stage_model.named_parameters()}
    tiny_clip.patcher.partially_load(CPU, 10**12)
    assert {name: p.data_ptr() for name, p in tiny_clip.cond_stage_model.named_parameters()} == before
    tiny_clip.patcher.detach()


@pytest.mark.parametrize(("rows", "status"), [([row()], 0), ([row(), row(same=False)], 1), ([row(limit=1)], 1)])
def test_status_is_1_for_a_wrong_row(monkeypatch, tmp_path, comfy_folder, capsys, rows, status):
    monkeypatch.setattr(budgets, "measured", lambda name, host: rows)
    assert budgets.run(("demo",), comfy_folder, tmp_path) == status
    assert ("FAIL  demo: bf16 at 50 %" in capsys.readouterr().out) == bool(status)
    kept = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [one["loaded"] for one in kept] == [400] * len(rows)


def test_document_has_a_row_for_each_and_says_what_was_not_measured(tmp_path):
    tables = [Table("demo", [row()]), Table("wide", [row(same=False, peak=None)])]
    budgets_report.write(tables, {"torch": "2"}, tmp_path / "partial.md")
    text = (tmp_path / "partial.md").read_text()
    assert "| PASS | bf16 | 50 % | 0.0 of 0.0 MB | yes | 3.0 MB | 0.50 s | 1.25 s |" in text
    assert "| FAIL | bf16 | 50 % | 0.0 of 0.0 MB | NO |  | 0.50 s | 1.25 s |" in text
    assert "**No GPU was used.**" in text and "Not measured here:" in text and "torch 2" in text


def test_every_format_of_the_table_has_a_file():
    assert set(budgets.FORMATS) == {"bf16", "streamed", *budgets_files.PACKED}
    assert budgets.BUDGETS[:6] == ("0", "10", "25", "50", "90", "100")


def test_measurement_that_ends_badly_is_an_error_with_its_last_words(comfy_folder, tmp_path):
    of = budgets.Weights("demo", 4, (64, 64), 1, 1)
    with pytest.raises(RuntimeError, match=r"expected figures of lost\.safetensors, got exit status 1:(.|\n)*got none"):
        budgets.measure(tmp_path / "lost.safetensors", of, "mmap", ("0",), comfy_folder, comfy_folder)


def test_full_disk_is_said_before_writing(monkeypatch):
    usage = type("Usage", (), {"free": 10**9})
    monkeypatch.setattr(budgets_files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RuntimeError, match=r"expected 12 GB of free disk .* got 1\.0 GB"):
        budgets_files._require_space()


def test_demo_claims_are_rows_of_the_same_figures(monkeypatch, tiny_checkpoint):
    given = type("Given", (), {"path": tiny_checkpoint})
    rows = [{**GOOD, "budget": "10"}, {**GOOD, "same": False}, {**GOOD, "budget": "all", "limit": None}]
    monkeypatch.setattr(budgets, "finished", lambda run, path: {"weights": 400, "tokens": 118, "rows": rows})
    claims = list(demo_budget_claims.budget_claims(None, given))
    assert [claim.passed for claim in claims] == [True, False, True]
    assert {claim.number for claim in claims} == {6}
    assert claims[0].what == "One request with a tenth of the weights allowed on the device"
    assert "peak 3.0 MB; bit-equal to the encoder without ComfyUI" in claims[0].figure
    assert "expected the bits of the encoder without a host" in claims[1].figure


def test_prompt_alone_needs_no_picture(comfy, tiny_clip):  # noqa: F811
    alone, seen = (budgets_measure.request(tiny_clip, size) for size in (None, (64, 64)))
    assert alone.presentation.image is None and len(seen.sequence) > len(alone.sequence)
    assert isinstance(tiny_clip.encoder.encode_presentation(alone.presentation).hidden, torch.Tensor)
