"""The doctor node: text, table and what the node itself says, for good, wrong and broken files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3te_tests.checkpoint_files import QWEN3_VL_8B, released_config
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from h3te_tests.packed_headers import PACKED, write_packed

RED = torch.tensor([190, 24, 24]) / 255
BROKEN = {
    "empty.safetensors": b"",
    "page.safetensors": b"<!doctype html><html></html>",
    "pointer.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "pickle.bin": b"\x80\x02}q\x00." + bytes(100),
    "noise.gguf": b"GGUF" + bytes(range(256)),
}


@pytest.fixture
def doctor(text_encoders):  # noqa: F811
    from h3te.nodes.checkpoint_doctor import CheckpointDoctor

    return CheckpointDoctor


def red_rows(table: torch.Tensor) -> torch.Tensor:
    """Rows of the picture that hold red letters."""
    return ((table[0] - RED).abs().amax(-1) < 0.01).any(1).nonzero().flatten()


def test_good_file_gets_text_and_a_table_without_red(doctor, text_encoders):  # noqa: F811
    name = "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
    write_packed(text_encoders / name, PACKED["nvfp4_awq"](released_config(layers=50)))
    output = doctor.execute(name)
    text, table = output.args
    assert "verdict      MiniMax H3's text encoder, ready to use" in text
    assert "nvfp4 with AWQ scales, int8 embedding" in text
    said = output.ui["text"][0].splitlines()
    assert said[0] == "verdict      MiniMax H3's text encoder, ready to use"
    assert [said[-1], *said[:-1]] == [line.strip() for line in text.splitlines()]
    assert table.dtype == torch.float32
    assert (table.ndim, table.shape[0], table.shape[2:]) == (4, 1, (1200, 3))
    low, high = float(table.min()), float(table.max())
    assert low >= 0 and low < 0.3 and high > 0.9 and high <= 1
    assert len(red_rows(table)) == 0


def test_wrong_file_has_its_problems_in_red_and_first(doctor, text_encoders):  # noqa: F811
    write_packed(text_encoders / "encoder.safetensors", PACKED["bf16"](released_config(**QWEN3_VL_8B)))
    text, table = doctor.execute("encoder.safetensors").args
    assert text.index("(this is Qwen3-VL-8B)") < text.index("what to do") < text.index("layout")
    red = red_rows(table)
    assert red.min() > 0 and red.max() < table.shape[1] / 2


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_reported_and_stops_nothing(doctor, text_encoders, name):  # noqa: F811
    (text_encoders / name).write_bytes(BROKEN[name])
    assert doctor.validate_inputs(name) is True
    text, table = doctor.execute(name).args
    assert "not usable: 1 problem" in text
    assert "what to do" in text
    assert len(red_rows(table)) > 0


def test_folder_is_reported(doctor, text_encoders, demo_folder):  # noqa: F811
    place(demo_folder, text_encoders / "h3" / "text_encoder")
    text, _ = doctor.execute("h3/text_encoder/").args
    assert "demo weights: it runs, its output is meaningless" in text
    assert "folder, " in text


def test_name_that_is_nowhere_is_refused_in_the_nodes_own_name(doctor):
    message = doctor.validate_inputs("nothing.safetensors")
    assert message.startswith("MiniMax H3 Checkpoint Doctor (H3TE): expected a text encoder file or folder, got")
    with pytest.raises(ValueError, match="MiniMax H3 Checkpoint Doctor"):
        doctor.execute("nothing.safetensors")
    assert doctor.validate_inputs(None) is True  # a linked name is looked up in the run


def test_report_is_made_again_when_the_file_changed(doctor, text_encoders):  # noqa: F811
    path = text_encoders / "e.safetensors"
    path.write_bytes(b"")
    first = doctor.fingerprint_inputs("e.safetensors")
    assert "got 0 bytes" in doctor.execute("e.safetensors").args[0]
    path.write_bytes(b"<html>" * 9)
    assert doctor.fingerprint_inputs("e.safetensors") != first
    assert "a web page" in doctor.execute("e.safetensors").args[0]
    assert "expected" in str(doctor.fingerprint_inputs("nothing"))


def test_node_runs_alone(doctor):
    assert doctor.GET_SCHEMA().is_output_node


# the picture


def test_long_words_are_broken_and_nothing_is_cut_off():
    from h3te.encoder.checkpoint.picture import font, wrapped

    face, text = font(22), "a " + "x" * 500 + " b c"
    lines = wrapped(text, face, 300)
    assert all(face.getlength(line) <= 300 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrapped("", face, 300) == [""]


@pytest.mark.parametrize("failure", [TypeError, ImportError])
def test_old_pillow_draws_with_its_fixed_font(monkeypatch, failure):
    from h3te.encoder.checkpoint import picture
    from h3te.encoder.checkpoint.report import CheckpointReport

    plain = picture.ImageFont.load_default

    def load_default(*arguments):
        if arguments:
            raise failure
        return plain()

    picture.font.cache_clear()
    monkeypatch.setattr(picture.ImageFont, "load_default", load_default)
    try:
        assert picture.draw(CheckpointReport(Path("e.safetensors"), problems=("e: expected a, got b. Do c.",))).width
    finally:
        picture.font.cache_clear()


def test_picture_of_a_path_without_a_name():
    from h3te.encoder import inspect_checkpoint
    from h3te.encoder.checkpoint.picture import draw

    assert draw(inspect_checkpoint(Path("/"))).height > 100
