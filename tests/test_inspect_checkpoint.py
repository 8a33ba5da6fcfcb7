"""The doctor on checkpoints of real size (true headers over holes): what it reports, how fast, and what it opens."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from h3te.encoder import EncoderConfig, inspect_checkpoint, load_encoder
from h3te_tests.checkpoint_files import (
    INDEX,
    QWEN3_VL_8B,
    bare_name,
    comfyui_name,
    opened_files,
    released_config,
    stored,
    write_sparse,
    write_sparse_folder,
)
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config

NEEDED_BYTES = 51_506_191_840  # computed from the released config and index
SINGLE = "qwen3vl_32b_minimax_h3_bf16.safetensors"


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> Path:
    return write_sparse_folder(tmp_path_factory.mktemp("released") / "text_encoder", released_config())


def single(
    folder: Path, name: str = SINGLE, *, keep=lambda name: True, rename=comfyui_name, dtype="BF16", metadata=None
) -> Path:
    tensors = {n: t for n, t in stored(released_config(), dtype, rename).items() if keep(n)}
    return write_sparse(folder / name, tensors, metadata)


def test_official_folder(official):
    report = inspect_checkpoint(official)
    assert report.problems == ()
    assert report.is_h3
    assert not report.is_demo
    assert (report.layout, report.format, report.layers, report.hidden_size) == ("official", "bf16", 64, 5120)
    assert report.has_vision
    assert report.bytes_needed == NEEDED_BYTES
    assert report.config == EncoderConfig.from_dict(released_config())
    assert report.tokenizer is None
    assert report.describe() == "bf16, 64 layers, 5120 wide, vision tower, 51.51 GB needed"


def test_official_folder_counts_shards_that_are_not_needed(official):
    report = inspect_checkpoint(official)
    shards = sorted(official.glob("*.safetensors"))
    assert len(shards) == 14
    assert [path.name[6:11] for path in report.files_unneeded] == ["00012", "00013"]
    assert sorted([*report.files_needed, *report.files_unneeded]) == shards


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_only_needed_headers_are_opened(official):
    with opened_files(official) as names:
        report = inspect_checkpoint(official)
    assert names == {INDEX, "config.json", *(path.name for path in report.files_needed)}


def test_official_folder_is_told_from_its_parent(official):
    assert inspect_checkpoint(official.parent).path == official


def test_headers_are_read_in_no_time(official):
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        inspect_checkpoint(official)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2


@pytest.mark.parametrize(("rename", "layout"), [(comfyui_name, "comfyui"), (str, "official"), (bare_name, "bare")])
def test_single_file(tmp_path, rename, layout):
    report = inspect_checkpoint(single(tmp_path, rename=rename))
    assert report.problems == ()
    assert (report.layout, report.layers, report.bytes_needed) == (layout, 64, NEEDED_BYTES)
    assert report.config == EncoderConfig.from_dict(released_config())  # from the shapes
    assert report.files_needed == (tmp_path / SINGLE,)
    assert report.files_unneeded == ()


def test_exactly_50_layers_are_enough(tmp_path):
    past = tuple(f"model.layers.{i}." for i in range(50, 64))
    report = inspect_checkpoint(single(tmp_path, keep=lambda name: not name.startswith(past)))
    assert report.problems == ()
    assert (report.layers, report.bytes_needed) == (50, NEEDED_BYTES)


@pytest.mark.parametrize(("dtype", "name"), [("F16", "fp16"), ("F32", "fp32")])
def test_other_float_types_are_named(tmp_path, dtype, name):
    report = inspect_checkpoint(single(tmp_path, dtype=dtype))
    assert (report.problems, report.format) == ((), name)


def test_text_only_qwen3_32b_is_refused_by_name(tmp_path):
    path = single(tmp_path, "qwen_3_32b.safetensors", keep=lambda name: not name.startswith("visual."))
    report = inspect_checkpoint(path)
    assert not report.is_h3
    assert not report.has_vision
    assert len(report.problems) == 1
    assert "this looks like the text-only Qwen3-32B" in report.problems[0]


@pytest.mark.parametrize("says", ["by name", "by config"])
def test_qwen3vl_file_without_vision_serves_text(tmp_path, says):
    metadata = {"config": json.dumps(released_config())} if says == "by config" else None
    name = SINGLE if says == "by name" else "e.safetensors"
    path = single(tmp_path, name, keep=lambda name: not name.startswith("visual."), metadata=metadata)
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert "no vision tower" in report.describe()
    assert load_encoder(path).config.vision is None


def test_incomplete_vision_tower_is_told(tmp_path):
    path = single(tmp_path, keep=lambda name: not name.startswith("visual.deepstack_merger_list.1"))
    report = inspect_checkpoint(path)
    assert any("expected 351 vision tensors, got 345" in problem for problem in report.problems)
    assert any("missing: model.visual.deepstack_merger_list.1" in problem for problem in report.problems)


def test_missing_tensor_is_told(tmp_path):
    report = inspect_checkpoint(single(tmp_path, keep=lambda name: name != "model.layers.49.self_attn.k_proj.weight"))
    assert "missing: model.language_model.layers.49.self_attn.k_proj.weight" in report.problems[0]
    assert not report.is_h3


def test_smaller_sibling_is_named_by_depth_and_width(tmp_path):
    tensors = stored(released_config(**QWEN3_VL_8B))
    report = inspect_checkpoint(write_sparse(tmp_path / SINGLE, tensors))
    assert [problem.split(", got ")[1].split(".")[0] for problem in report.problems] == [
        "36 (this is Qwen3-VL-8B)",
        "4096 (this is Qwen3-VL-8B)",
    ]


@pytest.mark.parametrize("where", ["config.json", "metadata"])
def test_demo_weights_say_so(tmp_path, where):
    config = released_config(width=64, mlp=160, heads=4, hidden_size=144, intermediate_size=256, num_heads=2)
    config["text_config"]["num_key_value_heads"] = 2
    if where == "config.json":
        path = write_sparse_folder(tmp_path / "demo", {**config, "h3te_demo": True})
    else:
        metadata = {"config": json.dumps(config), "h3te_demo": "1"}
        path = write_sparse(tmp_path / "demo.safetensors", stored(config), metadata)
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert report.is_demo
    assert report.is_h3
    assert report.describe().startswith("demo weights: output is meaningless")


def test_same_dimensions_without_the_demo_key_are_not_h3(tmp_path):
    tensors = {name: ("BF16", shape) for name, shape in shapes(tiny_config()).items()}
    report = inspect_checkpoint(write_sparse(tmp_path / SINGLE, tensors), TAP_LAYER)
    assert not report.is_h3
    assert any("expected hidden width 5120, got 64" in problem for problem in report.problems)


def test_tokenizer_beside_the_checkpoint_is_reported(tmp_path, tokenizer_folder):
    path = single(tmp_path / "text_encoder")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tokenizer_folder / name, tmp_path / "text_encoder")
    assert inspect_checkpoint(path).tokenizer == tmp_path / "text_encoder"


def test_unreadable_path_is_reported_with_its_path(tmp_path):
    report = inspect_checkpoint(tmp_path / "none")
    assert report.path == tmp_path / "none"
    assert report.describe().startswith("unknown format")
    assert len(report.problems) == 1
