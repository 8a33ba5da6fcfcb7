"""The demo checkpoint: same bytes everywhere, the released layout, an explicit mark, nobody else's files touched."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import demo_checkpoint
import demo_packed
import demo_tokenizer
import demo_weights
import given_checkpoint
import layout
import numpy as np
import pytest
import torch
from h3te.encoder import inspect_checkpoint
from h3te.encoder.tokens import H3_TOKENS
from safetensors import safe_open

SHARD = "model-{:05d}-of-00014.safetensors"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    """A stand-in for ComfyUI's tokenizer folder: the files are copied as they are, whatever they hold."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory, vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "text_encoder"
    assert demo_checkpoint.make_folder(folder, vocabulary)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def header(file: Path) -> dict:
    with file.open("rb") as opened:
        return json.loads(opened.read(int.from_bytes(opened.read(8), "little")))


def tensors(file: Path) -> dict[str, dict]:
    return {name: entry for name, entry in header(file).items() if name != "__metadata__"}


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_same_bytes_when_made_twice(made, vocabulary, tmp_path):
    again = tmp_path / "again"
    demo_checkpoint.make_folder(again, vocabulary)
    assert digests(again) == digests(made)


def test_recipe_version_stands_for_these_bytes(made):
    """Raise RECIPE_VERSION together with this digest: kept checkpoints are only made again when it changes."""
    whole = hashlib.sha256(b"".join((made / SHARD.format(n)).read_bytes() for n in range(1, 15))).hexdigest()
    assert (demo_weights.RECIPE_VERSION, whole[:16]) == (1, "fb34875c10625d4b")


def test_no_partial_folder_is_left(made):
    assert [entry.name for entry in made.parent.iterdir()] == ["text_encoder"]


def test_config_is_released_depth_and_marked_demo(made):
    config = json.loads((made / "config.json").read_text())
    assert config["h3te_demo"] is True
    assert "meaningless" in config["h3te_demo_note"]
    assert config["text_config"]["num_hidden_layers"] == 64
    assert config["text_config"]["vocab_size"] == 151936
    assert config["vision_config"]["depth"] == 27
    assert config["vision_config"]["deepstack_visual_indexes"] == [8, 16, 24]


def test_index_lists_the_released_1058_tensors_where_they_are(made):
    index = json.loads((made / "model.safetensors.index.json").read_text())
    found = {name: shard.name for shard in made.glob("*.safetensors") for name in tensors(shard)}
    assert index["weight_map"] == found
    assert len(found) == 1058
    assert sum("visual." in name for name in found) == 351
    assert {"lm_head.weight", "model.language_model.norm.weight"} <= found.keys()


def test_shards_12_and_13_hold_nothing_that_50_layers_need(made):
    def needed(number: int) -> set[str]:
        return {name for name in tensors(made / SHARD.format(number)) if demo_weights.single_file_name(name)}

    assert not needed(12) and not needed(13)
    assert {name.split(".")[3] for name in needed(11)} == {"48", "49"}
    assert all(name.startswith("model.visual.") for name in needed(14))
    assert all(needed(number) for number in (*range(1, 12), 14))


def test_every_fifth_layer_is_split_over_two_shards():
    names = demo_weights.tensor_shapes(demo_weights.demo_config())
    split = {
        layer
        for layer in range(64)
        if len({demo_weights.shard_of(name) for name in names if f".layers.{layer}." in name}) == 2
    }
    assert split == set(range(3, 64, 5))


def test_safetensors_reads_every_file(made, tmp_path):
    safe_open = pytest.importorskip("safetensors").safe_open
    torch = pytest.importorskip("torch")
    demo_checkpoint.make_single_file(tmp_path / "one.safetensors")
    for file in [*made.glob("*.safetensors"), tmp_path / "one.safetensors"]:
        with safe_open(file, "pt") as opened:
            for name, entry in tensors(file).items():
                tensor = opened.get_tensor(name)
                assert list(tensor.shape) == entry["shape"] and tensor.dtype == torch.bfloat16


def test_weight_rounds_like_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(demo_weights._bfloat16(values), expected)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "bound"),
    [
        ("model.language_model.norm.weight", (64,), 1, 0.1),
        ("model.visual.merger.norm.weight", (144,), 1, 0.1),
        ("model.visual.blocks.0.norm1.bias", (144,), 0, 0.05),
        ("model.visual.pos_embed.weight", (2304, 144), 0, 1),
        ("model.visual.patch_embed.proj.weight", (144, 3, 2, 16, 16), 0, math.sqrt(3 / 1536)),
        ("model.language_model.layers.0.self_attn.q_proj.weight", (512, 64), 0, math.sqrt(3 / 64)),
        ("model.language_model.layers.0.mlp.down_proj.weight", (64, 160), 0, math.sqrt(3 / 160 / 128)),
        ("model.visual.blocks.0.mlp.linear_fc2.weight", (144, 256), 0, math.sqrt(3 / 256 / 54)),
        ("model.visual.merger.linear_fc2.weight", (64, 576), 0, math.sqrt(3 / 576)),
    ],
)
def test_weight_scale_per_kind_of_tensor(name, shape, mean, bound):
    values = to_float(demo_weights.weight(name, shape, demo_weights.demo_config())) - mean
    assert values.shape == shape
    assert 0.85 * bound < np.abs(values).max() <= 1.02 * bound


def test_finished_checkpoint_is_not_rewritten(made, vocabulary):
    before = {file.name: file.stat().st_mtime_ns for file in made.iterdir()}
    assert not demo_checkpoint.make_folder(made, vocabulary)
    assert not demo_checkpoint.make_folder(made)  # one that holds more than asked for serves too
    assert {file.name: file.stat().st_mtime_ns for file in made.iterdir()} == before


@pytest.mark.parametrize("damage", ["truncated shard", "missing shard", "broken stamp", "older recipe", "no tokenizer"])
def test_half_written_or_old_folder_is_replaced(made, vocabulary, tmp_path, damage):
    folder, whole = tmp_path / "demo", digests(made)
    shutil.copytree(made, folder)
    stamp = folder / demo_checkpoint.STAMP
    if damage == "truncated shard":
        (folder / SHARD.format(3)).write_bytes(b"cut short")
    elif damage == "missing shard":
        (folder / SHARD.format(3)).unlink()
    elif damage == "broken stamp":
        stamp.write_bytes(b"{")
    elif damage == "older recipe":
        stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"recipe": 0}))
    else:
        shutil.rmtree(folder)
        demo_checkpoint.make_folder(folder)
    assert demo_checkpoint.make_folder(folder, vocabulary)
    assert digests(folder) == whole


def test_folder_of_something_else_is_refused_and_kept(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(ValueError, match=r"got other files in .*Choose another folder; nothing was changed"):
        demo_checkpoint.make_folder(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_weights, "write_safetensors", fail)
    with pytest.raises(OSError, match="No space left"):
        demo_checkpoint.make_folder(tmp_path / "demo")
    with pytest.raises(OSError, match="No space left"):
        demo_checkpoint.make_single_file(tmp_path / "demo.safetensors")
    assert not any(tmp_path.iterdir())


def test_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(RuntimeError, match=r"expected \d+ MB of free disk, got 1 MB .* Free some space"):
        demo_checkpoint.make_folder(tmp_path / "demo")
    assert not any(tmp_path.iterdir())


def test_single_file_holds_the_needed_902_tensors_with_the_folder_s_bytes(made, tmp_path):
    file = tmp_path / "h3_demo.safetensors"
    assert demo_checkpoint.make_single_file(file)
    names = tensors(file).keys()
    assert len(names) == 902
    assert not any("lm_head" in name or name == "model.norm.weight" or ".layers.50." in name for name in names)
    name, official = "model.layers.48.mlp.up_proj.weight", "model.language_model.layers.48.mlp.up_proj.weight"
    assert payload(file, name) == payload(made / SHARD.format(11), official)


def payload(file: Path, name: str) -> bytes:
    content = file.read_bytes()
    base = 8 + int.from_bytes(content[:8], "little")
    start, stop = tensors(file)[name]["data_offsets"]
    return content[base + start : base + stop]


def test_single_file_carries_mark_and_config_of_its_own_depth(tmp_path):
    demo_checkpoint.make_single_file(tmp_path / "demo.safetensors")
    metadata = header(tmp_path / "demo.safetensors")["__metadata__"]
    assert metadata["h3te_demo"] == "true"
    assert json.loads(metadata["config"])["text_config"]["num_hidden_layers"] == 50


def test_single_file_is_reused_when_whole_and_replaced_when_cut(tmp_path):
    file = tmp_path / "demo.safetensors"
    demo_checkpoint.make_single_file(file)
    whole = file.read_bytes()
    assert not demo_checkpoint.make_single_file(file)
    file.write_bytes(whole[: len(whole) // 2])
    assert demo_checkpoint.make_single_file(file)
    assert file.read_bytes() == whole


def test_single_file_of_something_else_is_refused_and_kept(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"real weights")
    with pytest.raises(ValueError, match=r"got something else at .*Choose another file name"):
        demo_checkpoint.make_single_file(file)
    assert file.read_bytes() == b"real weights"


def test_tokenizer_config_gives_the_h3_tokens_the_ids_after_26_known_ones():
    config = json.loads(demo_tokenizer.tokenizer_config())
    assert list(map(int, config["added_tokens_decoder"])) == list(range(151643, 151669))
    assert config["additional_special_tokens"][-7:] == list(H3_TOKENS)


def test_missing_vocabulary_is_said_before_anything_is_written(tmp_path, vocabulary):
    with pytest.raises(ValueError, match=r"expected vocab.json and merges.txt .* got no vocab.json .*qwen25_tokenizer"):
        demo_checkpoint.make_folder(tmp_path / "demo", tmp_path)
    assert not any(tmp_path.iterdir())


def test_transformers_loads_the_tokenizer_with_the_h3_tokens(tokenizer_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    demo_checkpoint.make_folder(tmp_path / "demo", Path(tokenizer_folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "demo")
    assert tokenizer.convert_tokens_to_ids(list(H3_TOKENS)) == list(range(151669, 151676))
    assert tokenizer("<Picture 1>: ").input_ids == [21604, 3826, 220, 16, 26818, 220]
    assert tokenizer("<d>Hi</d> <|image_pad|>").input_ids == [151669, 13048, 151670, 220, 151655]


def test_command_line_says_what_it_did_and_what_went_wrong(tmp_path, capsys):
    target = str(tmp_path / "demo")
    assert demo_checkpoint.main([target]) == 0
    assert "demo checkpoint made" in capsys.readouterr().out
    assert demo_checkpoint.main([target]) == 0
    assert "already there" in capsys.readouterr().out
    (tmp_path / "else").write_bytes(b"")
    assert demo_checkpoint.main([str(tmp_path / "else"), "--single-file"]) == 1
    assert "expected no file or an earlier demo checkpoint" in capsys.readouterr().err


def test_single_file_holds_the_weights_of_the_folder(made, tmp_path):
    demo_checkpoint.make_single_file(tmp_path / "file.safetensors")
    index = json.loads((made / demo_checkpoint.INDEX).read_text())["weight_map"]
    with safe_open(tmp_path / "file.safetensors", framework="pt") as single:
        for released, shard in index.items():
            short = demo_weights.single_file_name(released)
            if short:
                with safe_open(made / shard, framework="pt") as sharded:
                    assert torch.equal(single.get_tensor(short), sharded.get_tensor(released)), released


@pytest.fixture(scope="module")
def packed(made, tmp_path_factory) -> dict[str, Path]:
    """The packed files beside a copy of the demo folder."""
    folder = tmp_path_factory.mktemp("models") / "h3te-demo"
    shutil.copytree(made, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "TEMP", tmp_path_factory.mktemp("temp"))
        return demo_packed.make(folder, "test")


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("nvfp4_awq", "nvfp4 with AWQ scales, int8 embedding"),
        ("int8_convrot", "int8 convrot, bf16 embedding"),
        ("gguf", "Q8_0"),
    ],
)
def test_packed_demo_file_is_named_as_the_real_one_and_is_what_it_says(packed, kind, format):
    report = inspect_checkpoint(packed[kind])
    assert report.problems == ()
    assert report.is_demo and report.has_vision and report.format == format
    assert report.bytes_needed < 0.9 * 45e6  # bf16: 45 MB
    assert packed[kind].name.startswith("qwen3vl_32b_minimax_h3_") and "h3te-demo" in packed[kind].name


def test_packed_demo_files_are_made_once_and_again_when_cut(packed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(layout, "TEMP", tmp_path)
    folder, file = packed["gguf"].with_name("h3te-demo"), packed["nvfp4_awq"]
    whole, before = file.read_bytes(), {path: path.stat().st_mtime_ns for path in packed.values()}
    assert demo_packed.make(folder, "test") == packed
    assert {path: path.stat().st_mtime_ns for path in packed.values()} == before
    file.write_bytes(whole[: len(whole) // 2])
    demo_packed.make(folder, "test")
    assert file.read_bytes() == whole
    assert capsys.readouterr().out == f"test: made the demo checkpoint as {file.name}\n"


def test_somebody_elses_file_in_a_packed_files_place_is_kept(made, tmp_path):
    folder = tmp_path / "h3te-demo"
    shutil.copytree(made, folder)
    file = tmp_path / demo_packed.FILES["nvfp4_awq"]
    file.write_bytes(b"real weights")
    with pytest.raises(ValueError, match=r"got something else at .*Move it away; nothing was changed"):
        demo_packed.make(folder, "test")
    assert file.read_bytes() == b"real weights"


def test_broken_files_are_told_by_the_doctor_and_deleted_again(packed):
    folder = packed["gguf"].with_name("h3te-demo")
    with demo_packed.broken(folder, packed["nvfp4_awq"]) as broken:
        problems = {what: inspect_checkpoint(file).problems for what, file in broken.items()}
    assert "as its header says" in problems["truncated"][0]
    assert "mxfp8" in problems["mxfp8"][0]
    assert not any(file.exists() for file in broken.values())


def test_given_gguf_is_shown_with_its_vision_file_and_nothing_else(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "TEMP", tmp_path)
    for _ in range(2):
        folder = given_checkpoint.lone_folder(packed["gguf"])
        names = {file.name for file in folder.iterdir()}
        assert names == {packed["gguf"].name, "mmproj-" + packed["gguf"].name}
        assert inspect_checkpoint(folder / packed["gguf"].name).problems == ()
