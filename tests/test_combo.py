"""The loader's combo and what its saved values mean: CLIPLoader's names, released folders, moved and changed files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from safetensors.torch import save_file


@pytest.fixture
def paths(text_encoders):  # noqa: F811
    from h3te.nodes.host import paths

    return paths


def other_model(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"text_model.encoder.layers.0.mlp.fc1.weight": torch.zeros(2, 2)}, file)


def test_combo_without_files_explains_which_file_goes_where(paths):
    assert paths.combo_values() == [paths.NOTHING]
    assert "models/text_encoders" in paths.NOTHING
    with pytest.raises(ValueError, match=r"Put qwen3vl_32b_minimax_h3_bf16\.safetensors"):
        paths.resolve(paths.NOTHING)


def test_combo_holds_every_name_of_clip_loader(comfy, paths, text_encoders):  # noqa: F811
    other_model(text_encoders / "sub" / "clip_l.safetensors")
    other_model(text_encoders.parent / "clip" / "old.safetensors")
    (text_encoders / "t5.bin").write_bytes(b"x")
    names = comfy.nodes.CLIPLoader.INPUT_TYPES()["required"]["clip_name"][0]
    assert set(paths.combo_values()) == set(names)


def test_recognised_encoders_come_first(paths, text_encoders, demo_folder, demo_file):  # noqa: F811
    other_model(text_encoders / "a_clip_l.safetensors")
    place(demo_folder, text_encoders / "h3" / "text_encoder")
    place(demo_file, text_encoders / "z" / "qwen3vl_32b_minimax_h3_demo.safetensors")
    values = paths.combo_values()
    assert values[:2] == ["h3/text_encoder/", str(Path("z/qwen3vl_32b_minimax_h3_demo.safetensors"))]
    assert "a_clip_l.safetensors" in values[2:]


def test_gguf_files_are_listed_and_refused_by_name(paths, text_encoders):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    (text_encoders / "h3.gguf").write_bytes(b"GGUF" + bytes(60))
    assert paths.combo_values() == ["h3.gguf"]
    answer = LoadTextEncoder.validate_inputs("h3.gguf")
    assert "GGUF" in answer
    assert "bf16 file" in answer


def test_pickles_are_listed_but_never_opened(paths, text_encoders):  # noqa: F811
    (text_encoders / "t5.pt").write_bytes(b"\x80\x02x")
    assert not paths.is_h3(text_encoders / "t5.pt")


def test_headers_are_read_once_until_the_file_changes(paths, text_encoders, monkeypatch):  # noqa: F811
    calls = []
    real = paths.inspect_checkpoint
    monkeypatch.setattr(paths, "inspect_checkpoint", lambda path: calls.append(path) or real(path))
    file = text_encoders / "clip_l.safetensors"
    other_model(file)
    paths.combo_values()
    paths.combo_values()
    assert len(calls) == 1
    os.utime(file, ns=(1, 1))
    paths.combo_values()
    assert len(calls) == 2


def test_new_files_appear_without_restart(paths, text_encoders):  # noqa: F811
    paths.combo_values()
    other_model(text_encoders / "sub" / "new.safetensors")
    os.utime(text_encoders, ns=(2, 2))
    assert paths.combo_values() == [str(Path("sub/new.safetensors"))]


def test_value_of_a_moved_file_is_found_by_its_name(paths, text_encoders, demo_file, caplog):  # noqa: F811
    place(demo_file, text_encoders / "new" / "h3.safetensors")
    assert paths.resolve("old/h3.safetensors") == text_encoders / "new" / "h3.safetensors"
    assert "is not there any more" in caplog.text
    assert paths.resolve("new\\h3.safetensors") == text_encoders / "new" / "h3.safetensors"


def test_value_of_a_file_in_two_places_is_refused_with_both(paths, text_encoders, demo_file):  # noqa: F811
    place(demo_file, text_encoders / "a" / "h3.safetensors")
    place(demo_file, text_encoders / "b" / "h3.safetensors")
    with pytest.raises(ValueError, match="2 files of that name elsewhere"):
        paths.resolve("old/h3.safetensors")


def test_released_parent_folder_is_accepted(paths, text_encoders, demo_folder):  # noqa: F811
    place(demo_folder, text_encoders / "MiniMax-H3" / "FL2VA" / "text_encoder")
    assert paths.combo_values()[0] == "MiniMax-H3/FL2VA/text_encoder/"
    assert paths.resolve("MiniMax-H3/") == text_encoders / "MiniMax-H3"
    assert paths.cached_report(paths.resolve("MiniMax-H3/")).is_h3


def test_folder_may_be_named_without_its_slash(paths, text_encoders, demo_folder):  # noqa: F811
    place(demo_folder, text_encoders / "h3" / "text_encoder")
    assert paths.resolve("h3/text_encoder") == paths.resolve("h3\\text_encoder\\") == text_encoders / "h3/text_encoder"


@pytest.mark.parametrize("value", [None, 5, ["a.safetensors"]])
def test_value_that_is_no_name_is_refused(paths, value):
    with pytest.raises(ValueError, match=f"expected text_encoder as a name, got {type(value).__name__}"):
        paths.resolve(value)


@pytest.mark.parametrize("value", ["../secret/", "/etc/", "nothing/"])
def test_folders_outside_the_model_folders_are_refused(paths, value):
    with pytest.raises(ValueError, match="in none of"):
        paths.resolve(value)


def test_file_state_changes_with_the_checkpoint(paths, text_encoders, demo_folder):  # noqa: F811
    folder = place(demo_folder, text_encoders / "h3")
    before = paths.file_state(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")
    assert paths.file_state(folder) != before
    assert paths.file_state(text_encoders / "none.safetensors") == ()
