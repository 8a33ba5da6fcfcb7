"""The loader's combo and what its saved values mean: CLIPLoader's names, released folders, moved and changed files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from h3te_tests.checkpoint_files import released_config
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
    assert "nvfp4_awq.safetensors, 15.7 GB" in paths.NOTHING
    with pytest.raises(ValueError, match="expected a text encoder file or folder") as told:
        paths.resolve(paths.NOTHING)
    for words in (
        "nvfp4_awq.safetensors (15.7 GB: for most people", "int8_convrot.safetensors (27.1 GB: closer",
        "bf16.safetensors (51.5 GB: the original", "text_encoder folder", "66.7 GB", "mmproj", "reload the page",
    ):  # fmt: skip
        assert words in str(told.value)


def test_the_entry_of_an_earlier_empty_list_means_no_file(paths, text_encoders, demo_file):  # noqa: F811
    place(demo_file, text_encoders / "h3.safetensors")
    with pytest.raises(ValueError, match="expected a text encoder file or folder"):
        paths.resolve("(none found: put qwen3vl_32b_minimax_h3_bf16.safetensors into models/text_encoders)")


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


def test_a_damaged_gguf_file_is_listed_and_refused_by_name(paths, text_encoders):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    (text_encoders / "h3.gguf").write_bytes(b"GGUF" + bytes(60))
    assert paths.combo_values() == ["h3.gguf"]
    answer = LoadTextEncoder.validate_inputs("h3.gguf")
    assert "h3.gguf" in answer
    assert "expected" in answer


@pytest.fixture
def gguf_pair(paths, text_encoders, demo_folder):  # noqa: F811
    """The demo checkpoint in llama.cpp's names, its vision part in a second file."""
    from gguf_files import write_gguf
    from gguf_plan import Types

    types = Types(linear="Q8_0", embedding="Q8_0", vision="Q8_0")
    write_gguf(demo_folder, text_encoders / "h3.gguf", "C", types)
    return text_encoders / "h3.gguf", text_encoders / "mmproj-h3.gguf"


def test_gguf_encoder_is_recognised_and_its_vision_file_offered(paths, gguf_pair):
    assert paths.combo_values() == ["h3.gguf", "mmproj-h3.gguf"]
    assert paths.vision_values() == [paths.BESIDE, "mmproj-h3.gguf", "h3.gguf"]
    assert paths.cached_report(gguf_pair[0]).has_vision
    assert not paths.is_h3(gguf_pair[1])


def test_gguf_headers_are_read_again_when_a_vision_file_comes_or_goes(paths, gguf_pair, tmp_path):
    text, vision = gguf_pair
    assert paths.cached_report(text) is paths.cached_report(text)
    elsewhere = vision.rename(tmp_path / vision.name)
    assert not paths.cached_report(text).has_vision
    elsewhere.rename(vision)
    assert paths.cached_report(text).has_vision


def test_combo_of_real_size_files_opens_each_header_once(paths, text_encoders, monkeypatch):  # noqa: F811
    from h3te_tests.gguf_files import write_sparse_gguf
    from h3te_tests.packed_headers import PACKED, write_packed

    config = released_config(layers=50)
    write_packed(text_encoders / "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", PACKED["nvfp4_awq"](config))
    write_sparse_gguf(text_encoders / "qwen3vl-32b-q4.gguf", "C", released_config(), vocabulary=20_000)
    values = paths.combo_values()
    assert set(values[:2]) == {"qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", "qwen3vl-32b-q4.gguf"}
    monkeypatch.setattr(paths, "inspect_checkpoint", None)
    started = time.perf_counter()
    assert paths.combo_values() == values
    assert time.perf_counter() - started < 0.05


def test_file_that_is_being_downloaded_makes_nobody_read_another_again(paths, text_encoders, monkeypatch):  # noqa: F811
    """20 GGUF files of real size: 0.1 s each, at every reload of the page, for as long as a download takes."""
    from h3te.encoder.checkpoint import gguf_file
    from h3te_tests.gguf_files import write_sparse_gguf

    first = write_sparse_gguf(text_encoders / "m00.gguf", "C", released_config(), vocabulary=20_000)
    for i in range(1, 20):
        os.link(first, text_encoders / f"m{i:02}.gguf")
    vision = (text_encoders / "mmproj-m00.gguf").rename(text_encoders.parent / "complete")
    paths.combo_values()
    inspected, parsed = [], []
    inspect, parse = paths.inspect_checkpoint, gguf_file._parse
    monkeypatch.setattr(paths, "inspect_checkpoint", lambda path: inspected.append(path.name) or inspect(path))
    monkeypatch.setattr(gguf_file, "_parse", lambda path, size: parsed.append(path.name) or parse(path, size))
    for source, name in ((first, "new.gguf"), (vision, "mmproj.gguf")):
        with source.open("rb") as file, (text_encoders / name).open("ab") as target:
            for _ in range(3):
                target.write(file.read(30_000))
                target.flush()
                assert len(paths.combo_values()) == 21 + (name == "mmproj.gguf")
    assert inspected[:3] == ["new.gguf"] * 3  # and no other
    assert not {name for name in parsed if name.startswith(("m0", "m1"))}
    vision.replace(text_encoders / "mmproj.gguf")
    assert paths.cached_report(first).has_vision


def test_state_of_a_gguf_file_is_its_own_and_of_what_can_be_its_vision_file(paths, gguf_pair, text_encoders):  # noqa: F811
    text, vision = gguf_pair
    states = [paths.file_state(text)]
    (text_encoders / "other.gguf").write_bytes(text.read_bytes()[:5000])
    (text_encoders / "other.safetensors").write_bytes(b"x")
    assert paths.file_state(text) == states[0]
    vision.rename(text_encoders / "V.GGUF")
    states.append(paths.file_state(text))
    os.utime(text_encoders / "V.GGUF", ns=(7, 7))
    states.append(paths.file_state(text))
    os.utime(text, ns=(7, 7))
    states.append(paths.file_state(text))
    assert len(set(states)) == 4


def test_vision_file_in_another_folder_is_taken_when_named(paths, gguf_pair, text_encoders):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    vision = gguf_pair[1]
    (text_encoders / "vision").mkdir()
    vision.rename(text_encoders / "vision" / vision.name)
    alone = LoadTextEncoder.execute("h3.gguf")
    assert "No vision tower: this file encodes text alone" in alone.ui["text"][0]
    assert "mmproj" in alone.ui["text"][0]
    named = EncoderOptionsNode.execute(vision_file=f"vision/{vision.name}").args[0]
    both = LoadTextEncoder.execute("h3.gguf", options=named)
    assert "No vision tower" not in both.ui["text"][0]
    assert both.args[0].encoder.config.vision is not None
    factory, arguments = both.args[0].patcher.cached_patcher_init
    assert factory(*arguments).model.encoder.config.vision is not None


def test_vision_file_that_is_gone_or_moved(paths, gguf_pair, text_encoders):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode

    assert paths.resolve_vision(paths.BESIDE) is None
    assert paths.resolve_vision("old/mmproj-h3.gguf") == gguf_pair[1]
    assert EncoderOptionsNode.validate_inputs("old/mmproj-h3.gguf") is True
    assert EncoderOptionsNode.validate_inputs(None) is True  # over a link
    assert "expected vision_file to be a file, got 'gone.gguf'" in EncoderOptionsNode.validate_inputs("gone.gguf")
    before = EncoderOptionsNode.fingerprint_inputs(vision_file="mmproj-h3.gguf")
    os.utime(gguf_pair[1], ns=(5, 5))
    assert EncoderOptionsNode.fingerprint_inputs(vision_file="mmproj-h3.gguf") != before
    assert EncoderOptionsNode.fingerprint_inputs(vision_file=paths.BESIDE) == ()
    assert "got 'gone.gguf'" in EncoderOptionsNode.fingerprint_inputs(vision_file="gone.gguf")
    with pytest.raises(ValueError, match="expected vision_file to be a file, got 5"):
        paths.resolve_vision(5)


def test_vision_file_beside_a_safetensors_encoder_is_refused(paths, gguf_pair, text_encoders, demo_file):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_file, text_encoders / "h3.safetensors")
    options = EncoderOptionsNode.execute(vision_file="mmproj-h3.gguf").args[0]
    with pytest.raises(ValueError, match=r"Load MiniMax H3 Text Encoder \(H3TE\): .*vision file for \.gguf"):
        LoadTextEncoder.execute("h3.safetensors", options=options)


def test_pickles_are_listed_but_never_opened(paths, text_encoders):  # noqa: F811
    (text_encoders / "t5.pt").write_bytes(b"\x80\x02x")
    assert not paths.is_h3(text_encoders / "t5.pt")


def test_headers_are_read_once_until_the_file_changes(paths, text_encoders, monkeypatch):  # noqa: F811
    calls = []
    real = paths.glance
    monkeypatch.setattr(paths, "glance", lambda path: calls.append(path) or real(path))
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
