"""The formats command: its list is complete, a row tells what is wrong with it, figures are those of the encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import formats
import formats_files
import formats_report
import pytest
from formats_list import FORMATS, SOURCE, Format
from formats_measure import measure
from formats_report import Row
from h3te_tests.tiny_weights import TAP_LAYER
from packed_files import KINDS, write_packed

BY_NAME = {format.name: format for format in FORMATS}
NVFP4 = replace(BY_NAME["nvfp4"], bound=0.3)
DOCTOR = {
    "seconds": 0.01,
    "line": "nvfp4, bf16 embedding, 4 layers, 256 wide, vision tower, 0.1 GB needed",
    "linears": ["nvfp4"],
    "linears_known": 28,
    "embedding": "bf16",
    "awq": False,
    "problems": [],
}
GOOD = {
    "doctor": DOCTOR,
    "load_seconds": 0.2,
    "encode_seconds": 0.3,
    "private": 60_000_000,
    "weight_bytes": 10,
    "tokens": 118,
    "same_bits": ["read", "stream"],
    "error": 0.1,
    "worst_token": 0.2,
}


def row(format: Format = NVFP4, doctor: dict | None = None, **found) -> Row:
    return Row(format, {**GOOD, **found, "doctor": {**DOCTOR, **(doctor or {})}}, 1_000_000, 4)


def refused(format: Format, problem: str) -> Row:
    return Row(format, {"doctor": {**DOCTOR, "problems": [problem]}, "refused": problem}, 1_000_000, 4)


def test_every_kind_of_packed_file_has_a_row():
    assert {format.kind for format in FORMATS} - {""} == set(KINDS)
    for format in FORMATS:
        if format.kind:
            assert KINDS[format.kind].served == (not format.refusal), format.name
    assert {format.family for format in FORMATS} == {"", "A", "B", "C"}
    assert len(BY_NAME) == len(FORMATS) == len({formats_files.path_of(format, Path("x")) for format in FORMATS})


def test_generated_widths_are_whole_blocks_of_every_format():
    text = formats_files.config()["text_config"]
    inputs = (text["hidden_size"], text["intermediate_size"], text["num_attention_heads"] * text["head_dim"])
    assert all(width % 256 == 0 for width in inputs)
    assert formats_files.config()["vision_config"]["depth"] == 27


def test_right_row_passes():
    assert row().wrong == []


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"error": 0.31}, "nvfp4: expected an error of at most 0.3, got 0.31"),
        ({"error": float("nan")}, "nvfp4: expected an error of at most 0.3, got nan"),
        ({"same_bits": ["read"]}, "nvfp4: expected the same bits from every reader, got them from ['read'] alone"),
        ({"doctor": {"linears": ["fp8"]}}, "nvfp4: expected the doctor to find linears ['nvfp4'], got ['fp8']"),
        ({"doctor": {"linears_known": 27}}, "nvfp4: expected the doctor to find linears_known 28, got 27"),
        ({"doctor": {"embedding": "int8"}}, "nvfp4: expected the doctor to find embedding bf16, got int8"),
        ({"doctor": {"awq": True}}, "nvfp4: expected the doctor to find awq False, got True"),
        ({"doctor": {"problems": ["no."]}}, "nvfp4: the doctor says: no."),
        ({"refused": "file: no."}, "nvfp4: expected to load, got file: no."),
    ],
)
def test_row_says_what_is_wrong(found, what):
    assert row(**found).wrong == [what]


def test_refusal_must_be_by_name():
    mxfp8 = BY_NAME["mxfp8"]
    assert refused(mxfp8, "x: expected nvfp4, got mxfp8 (28 tensors).").wrong == []
    assert len(refused(mxfp8, "x: expected nvfp4, got something.").wrong) == 2
    assert len(row(mxfp8).wrong) == 2


def test_width_may_be_refused_where_a_file_can_carry_no_mark_and_only_there():
    problem = {"problems": ["x.gguf: expected hidden width 5120, got 256."]}
    assert row(replace(NVFP4, marked=False), problem).wrong == []
    assert len(row(NVFP4, problem).wrong) == 1


def test_document_has_a_row_for_each_and_the_loaders_words(tmp_path):
    rows = [row(), refused(BY_NAME["mxfp8"], "x: expected nvfp4, got mxfp8."), row(error=0.5)]
    formats_report.write(rows, {"torch": "2"}, tmp_path, tmp_path / "formats.md")
    text = (tmp_path / "formats.md").read_text()
    assert "| PASS | nvfp4 | nvfp4, bf16 embedding | 1.0 MB | 0.20 s | 0.1000 | 0.2000 | 0.3000 | yes | 60 MB |" in text
    assert (
        "| PASS | mxfp8 |" in text and "- mxfp8: x: expected nvfp4, got mxfp8." in text and "| FAIL | nvfp4 |" in text
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert [r["wrong"] for r in report["rows"]] == [[], [], row(error=0.5).wrong]


def test_unknown_format_is_refused(capsys):
    with pytest.raises(SystemExit):
        formats._arguments(["nvfp4", "nvfp5"])
    assert "expected formats among" in capsys.readouterr().err
    assert formats._arguments(["HF block fp8 folder"]).formats == ["HF block fp8 folder"]


def test_packed_file_is_measured_against_its_source(tiny_checkpoint, tokenizer_folder, tmp_path, monkeypatch):
    from h3te.encoder.checkpoint import reader

    monkeypatch.setattr(reader, "STREAMED_FROM", 1 << 14)
    packed = write_packed(tiny_checkpoint, tmp_path / "packed.safetensors", "nvfp4", tap=TAP_LAYER)
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    source = measure(tiny_checkpoint, TAP_LAYER, tokenizer_folder, first, None)
    found = measure(packed, TAP_LAYER, tokenizer_folder, second, first)
    assert source["error"] == source["worst_token"] == 0 and source["same_bits"] == ["read", "stream"]
    assert 0.01 < found["error"] < found["worst_token"] < 1 and found["same_bits"] == ["read", "stream"]
    assert found["doctor"]["linears"] == ["nvfp4"] and found["doctor"]["linears_known"] == 7 * TAP_LAYER
    assert found["weight_bytes"] < source["weight_bytes"]


def test_refused_file_is_measured_as_refused(tiny_checkpoint, tokenizer_folder, tmp_path):
    packed = write_packed(tiny_checkpoint, tmp_path / "packed.safetensors", "mxfp8", tap=TAP_LAYER)
    found = measure(packed, TAP_LAYER, tokenizer_folder, tmp_path / "out.safetensors", None)
    assert BY_NAME["mxfp8"].refusal in found["refused"] and "error" not in found


def test_measurement_that_ends_badly_is_an_error_with_its_last_words(comfy_folder, tmp_path):
    lost, hidden = tmp_path / "folder" / "lost.safetensors", tmp_path / "hidden.safetensors"
    words = r"expected figures of lost\.safetensors in folder, got exit status 1:(.|\n)*got none"
    with pytest.raises(RuntimeError, match=words):
        formats.measure(lost, 4, comfy_folder, hidden, None)


def test_source_is_measured_first_and_once(comfy_folder, monkeypatch):
    asked = []
    monkeypatch.setattr(formats, "measure", lambda path, *rest: asked.append((path, rest[-1])) or GOOD)
    monkeypatch.setattr(formats, "_size", lambda path: 1)
    chosen = [BY_NAME[SOURCE], BY_NAME["nvfp4"]]
    rows = list(formats.measured(chosen, {SOURCE: Path("a"), "nvfp4": Path("b")}, 4, comfy_folder))
    assert [one.format for one in rows] == chosen
    assert asked[0] == (Path("a"), None) and asked[1][0] == Path("b") and asked[1][1] is not None and len(asked) == 2
