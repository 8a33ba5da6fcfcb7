"""Wrong, broken and foreign checkpoints: one clear error each, before any tensor is read; the doctor never raises."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from h3te.encoder import EncoderConfig, inspect_checkpoint, load_encoder
from h3te.encoder.checkpoint.files import CheckpointFiles
from h3te_tests.checkpoint_files import (
    INDEX,
    QWEN3_VL_4B,
    QWEN3_VL_8B,
    copy_sparse,
    released_config,
    stored,
    write_json,
    write_sparse,
    write_sparse_folder,
)
from h3te_tests.refused import FUZZ, JSON, SHARDS, refused, spoil_index
from h3te_tests.tiny_weights import shapes, tiny_config
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def no_tensor_is_read(monkeypatch) -> None:
    def refuse(*args, **options):
        raise AssertionError("a tensor was about to be read")

    for method in ("map", "read", "read_rows"):
        monkeypatch.setattr(CheckpointFiles, method, refuse)


@pytest.fixture
def folder(tiny_checkpoint, tmp_path) -> Path:
    """A copy of the tiny checkpoint to be spoilt."""
    return copy_sparse(tiny_checkpoint, tmp_path / "text_encoder")


# files that are no checkpoint, or not all of it

NO_CHECKPOINT = {
    "empty": (b"", "got 0 bytes", "download it again"),
    "five bytes": (b"abcde", "got 5 bytes", "download it again"),
    "text": (b"Dear user, this model is gated. Please accept the license.\n", "of another kind"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file", "Rename it to end in .gguf"),
    "zip": (b"PK\x03\x04" + bytes(100), "never opened", ".safetensors"),
    "pickle": (b"\x80\x02}q\x00." + bytes(100), "a pickle, which is never opened"),
    "pickle 4": (b"\x80\x04\x95" + bytes(100), "a pickle, which is never opened"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>" * 3, "a web page", "log in there"),
    "web page in a short spelling": (b"\n <HTML><head>", "a web page"),
    "broken json": ((20).to_bytes(8, "little") + b'{"a": {"dtype": "BF1', "unreadable text"),
    "json list": ((2).to_bytes(8, "little") + b"[]" + bytes(8), "got list"),
    "deep json": ((200_000).to_bytes(8, "little") + b"[" * 200_000, "unreadable text"),
    "no tensors": ((8).to_bytes(8, "little") + b"{}      ", "names of one layout"),
}


@pytest.mark.parametrize("name", NO_CHECKPOINT)
def test_file_that_is_no_checkpoint(tmp_path, name):
    content, *parts = NO_CHECKPOINT[name]
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(content)
    refused(path, *parts)


@pytest.mark.parametrize("name", NO_CHECKPOINT)
def test_shard_that_is_no_checkpoint(folder, name):
    content, *parts = NO_CHECKPOINT[name]
    (folder / SHARDS[1]).write_bytes(content)
    refused(folder, *(parts if name != "no tensors" else [SHARDS[1], "missing: "]))


def test_truncated_file_tells_both_numbers(tmp_path):
    tensors = stored(tiny_config())
    whole = write_sparse(tmp_path / "whole.safetensors", tensors).stat().st_size
    path = write_sparse(tmp_path / "encoder.safetensors", tensors, short_by=1000)
    refused(path, f"expected {whole:,} bytes", f"got {whole - 1000:,}", "download is incomplete")


def test_truncated_shard_tells_both_numbers(folder):
    shard = folder / SHARDS[0]
    whole = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(whole // 2)
    refused(folder, SHARDS[0], f"expected {whole:,} bytes", f"got {whole // 2:,}", "download is incomplete")


def test_file_with_something_behind_its_end(tmp_path):
    path = write_sparse(tmp_path / "encoder.safetensors", stored(tiny_config()), short_by=-7)
    refused(path, "The file is damaged")


# folders


def test_path_that_is_not_there(tmp_path):
    refused(tmp_path / "nothing", "got none", "Check the path", error=FileNotFoundError)


def test_path_that_may_not_be_read_is_explained(tmp_path, monkeypatch):
    path = write_sparse(tmp_path / "encoder.safetensors", stored(tiny_config()))

    def deny(self, *args, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", deny)
    refused(path, f"expected to read {path}, got Permission denied", "may read", error=PermissionError)
    refused(tmp_path / ("a" * 5000), "File name too long", "Check the path", error=OSError)


def test_folder_without_a_checkpoint(tmp_path):
    refused(tmp_path, INDEX, "text_encoder", "parent", error=FileNotFoundError)


def test_several_files_without_an_index(folder):
    (folder / INDEX).unlink()
    refused(folder, "beside 3 .safetensors files", "Download the index", error=FileNotFoundError)


def test_missing_needed_shard_is_named_with_what_it_holds(folder):
    (folder / SHARDS[0]).unlink()
    refused(folder, "2 needed shards", "got 1", SHARDS[0], "needed tensors", error=FileNotFoundError)


def test_one_shard_of_several_is_no_checkpoint(folder):
    refused(folder / SHARDS[0], "got one of 3 shards", "Point to the folder")


@pytest.mark.parametrize("file", ["../x.safetensors", "/x.safetensors", "sub/x", "..", "", None, 5, ["a"]])
@pytest.mark.parametrize("name", ["model.language_model.layers.0.mlp.up_proj.weight", "lm_head.weight"])
def test_index_that_points_outside_its_folder(folder, name, file):
    shutil.copy(folder / SHARDS[0], folder.parent / "x.safetensors")
    spoil_index(folder, **{name: file})
    refused(folder, "expected plain file names", repr(file))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_unreadable_index(folder, text):
    (folder / INDEX).write_text(text)
    refused(folder, INDEX, "Download the")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"text_config": 5}', "\xff"])
def test_unreadable_config(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(folder, "onfig")


def test_index_and_shard_of_different_downloads(folder):
    spoil_index(folder, **{"model.language_model.layers.0.mlp.up_proj.weight": SHARDS[1]})
    refused(folder, SHARDS[1], "missing: model.language_model.layers.0.mlp.up_proj.weight", "different downloads")


def test_config_and_weights_of_different_models(folder):
    write_json(folder / "config.json", tiny_config(intermediate_size=192))
    refused(folder, "shapes of config.json", "mlp.up_proj.weight is [160, 64], not [192, 64]", "different models")


@pytest.mark.parametrize("changes", [
    {"hidden_size": None}, {"hidden_size": "64"}, {"hidden_size": float("nan")}, {"hidden_size": float("inf")},
    {"num_attention_heads": 0}, {"num_attention_heads": 3}, {"head_dim": 100}, {"rope_scaling": [1]},
    {"rope_theta": None}, {"rope_scaling": {"rope_type": "yarn"}}, {"attention_bias": True}, {"hidden_act": "gelu"},
    {"rope_scaling": {"mrope_interleaved": False}}, {"rope_scaling": {"mrope_section": [64]}},
    {"rope_scaling": {"mrope_section": "abc"}}, {"num_hidden_layers": 3},
])  # fmt: skip
def test_config_of_another_kind(folder, changes):
    write_json(folder / "config.json", tiny_config(**changes))
    refused(folder, "ncoder", "expected")


@pytest.mark.parametrize("config", [None, "config.json", [1]])
def test_config_that_is_no_dict_is_refused(config):
    with pytest.raises(ValueError, match=f"expected the dict of config.json, got {type(config).__name__}"):
        EncoderConfig.from_dict(config)


@pytest.mark.parametrize("changes", [
    {"deepstack_visual_indexes": [3, 1, 5]}, {"deepstack_visual_indexes": [1, 3, 6]}, {"depth": -1}, {"num_heads": 7},
    {"deepstack_visual_indexes": "1"}, {"depth": 10**400}, {"out_hidden_size": 65}, {"num_position_embeddings": 2303},
    {"hidden_act": "gelu"}, {"depth": True},
])  # fmt: skip
def test_vision_config_of_another_kind(folder, changes):
    config = tiny_config()
    config["vision_config"] |= changes
    write_json(folder / "config.json", config)
    refused(folder, "EncoderConfig: expected")


def test_fewer_layers_than_the_tap(folder):
    refused(folder, "at least 50 decoder layers, got 6", "qwen3vl_32b", tap_layer=50)
    load_encoder(folder, tap_layer=6)


def test_single_file_with_a_layer_missing_in_between(tmp_path):
    names = [n for n in shapes(tiny_config()) if ".layers.3." not in n and n != "lm_head.weight"]
    path = write_sparse(tmp_path / "e.safetensors", {n: ("BF16", shapes(tiny_config())[n]) for n in names})
    refused(path, "expected decoder layers 0 to 5, got none with number 3", "download it again")


def test_tensors_that_would_change_the_result_are_not_ignored(tmp_path):
    tensors = stored(tiny_config()) | {"model.layers.1.self_attn.o_proj.bias": ("BF16", (64,))}
    refused(write_sparse(tmp_path / "e.safetensors", tensors), "1 unknown", "layers.1.self_attn.o_proj.bias")


def test_two_layouts_at_once(tmp_path):
    tensors = stored(tiny_config()) | stored(tiny_config(), rename=str)
    refused(write_sparse(tmp_path / "e.safetensors", tensors), "official and comfyui")


# other models, at their real size


def test_qwen3_vl_8b_and_4b_are_refused_by_name(tmp_path):
    for name, dimensions in (("Qwen3-VL-4B", QWEN3_VL_4B), ("Qwen3-VL-8B", QWEN3_VL_8B)):
        config = released_config(**dimensions)
        refused(write_sparse_folder(tmp_path / name, config), f"got 36 (this is {name})", tap_layer=50)
        single = write_sparse(tmp_path / "single.safetensors", stored(config))
        refused(single, f"got 36 (this is {name})", tap_layer=50)


MARKS = {
    "Qwen3.5": "model.layers.0.linear_attn.in_proj_qkvz.weight",
    "a mixture-of-experts model": "model.layers.0.mlp.experts.gate_up_proj",
    "Qwen2 or Qwen2.5": "model.layers.0.self_attn.q_proj.bias",
}


@pytest.mark.parametrize("model", MARKS)
def test_other_architectures_are_refused_by_name(tmp_path, model):
    tensors = stored(released_config()) | {MARKS[model]: ("BF16", (8,))}
    refused(write_sparse(tmp_path / "e.safetensors", tensors), f"Qwen3-VL-32B, got {model}", tap_layer=50)


# whatever a file may hold

NAMES = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.²",
    "visual.pos_embed.weight",
]


@FUZZ
@given(content=st.binary(max_size=200))
def test_no_bytes_make_the_doctor_raise(tmp_path, content):
    path = tmp_path / "e.safetensors"
    path.write_bytes(content)
    assert inspect_checkpoint(path).problems


@FUZZ
@given(index=JSON | st.fixed_dictionaries({"weight_map": st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)}))
def test_no_index_makes_the_doctor_raise(tmp_path, index):
    write_json(tmp_path / INDEX, index)
    assert inspect_checkpoint(tmp_path).problems


@FUZZ
@given(section=st.sampled_from(["text_config", "vision_config"]), data=st.data())
def test_every_config_is_taken_or_refused_by_name(section, data):
    config = tiny_config()
    key = data.draw(st.sampled_from(sorted(config[section])))
    config[section][key] = data.draw(JSON)
    try:
        EncoderConfig.from_dict(config)
    except ValueError as error:
        assert str(error).startswith("EncoderConfig: expected")
