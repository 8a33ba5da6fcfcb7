"""The doctor on checkpoints of real size (true headers over holes): what it reports, how fast, and what it opens."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from h3te.encoder import EncoderConfig, inspect_checkpoint, load_encoder
from h3te.encoder.checkpoint import gguf_catalog
from h3te_tests.checkpoint_files import (
    INDEX,
    QWEN3_VL_2B,
    QWEN3_VL_4B,
    QWEN3_VL_8B,
    bare_name,
    comfyui_name,
    opened_files,
    released_config,
    stored,
    write_sparse,
    write_sparse_folder,
)
from h3te_tests.gguf_files import vision_path, write_sparse_gguf
from h3te_tests.packed_headers import PACKED, write_packed
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config

CUT = released_config(layers=50)
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


def fastest(path: Path) -> float:
    """Seconds of the processor, best of five: waiting for other processes is not counted."""
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        inspect_checkpoint(path)
        seconds.append(time.thread_time() - start)
    return min(seconds)


def test_headers_of_the_released_folder_are_read_in_no_time(official):
    assert fastest(official) < 0.1


@pytest.mark.parametrize("kind", ["nvfp4_awq", "int8_convrot"])
def test_headers_and_markers_of_a_packed_file_are_read_in_no_time(tmp_path, kind):
    assert fastest(write_packed(tmp_path / "e.safetensors", PACKED[kind](CUT))) < 0.1


def test_released_folder_says_what_is_never_read(official):
    report = inspect_checkpoint(official)
    unopened = sum(path.stat().st_size for path in report.files_unneeded)
    headers = sum(path.stat().st_size for path in official.glob("*.safetensors")) - 66_714_780_128
    assert 0 < headers < 1_000_000
    assert 0 <= report.bytes_unread - 15_208_588_288 < headers
    assert unopened < report.bytes_unread
    assert report.bytes_in_files == 66_714_780_128 + headers


def test_tables_of_the_formats_are_by_released_name(official):
    report = inspect_checkpoint(official)
    assert report.linear_formats["model.language_model.layers.49.self_attn.o_proj.weight"] == "bf16"
    assert (report.formats, report.embedding_format, report.awq_folded) == ({"bf16": 350}, "bf16", False)


def test_norms_of_an_awq_file_carry_scales(tmp_path):
    tensors = PACKED["nvfp4_awq"](CUT)
    report = inspect_checkpoint(write_packed(tmp_path / "e.safetensors", tensors))
    assert report.awq_folded
    assert "never mix this file's norms with another's" in report.notes[0]
    gates = {n[:-6]: t for n, t in tensors.tensors.items() if n.endswith("gate_proj.weight")}
    tensors = tensors.with_tensors(**{f"{gate}pre_quant_scale": ("BF16", (5120,)) for gate in (n for n in gates)})
    assert not inspect_checkpoint(write_packed(tmp_path / "e.safetensors", tensors)).awq_folded


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


SIBLINGS = {"2B": QWEN3_VL_2B, "4B": QWEN3_VL_4B, "8B": QWEN3_VL_8B}


@pytest.mark.parametrize("size", SIBLINGS)
@pytest.mark.parametrize("kind", ["bf16", "fp8", "nvfp4"])
def test_smaller_sibling_is_named_by_depth_and_width(tmp_path, size, kind):
    tensors = PACKED[kind](released_config(**SIBLINGS[size]))
    report = inspect_checkpoint(write_packed(tmp_path / SINGLE, tensors))
    assert [problem.split(", got ")[1].split(". ")[0] for problem in report.problems[:2]] == [
        f"{SIBLINGS[size]['layers']} (this is Qwen3-VL-{size})",
        f"{SIBLINGS[size]['width']} (this is Qwen3-VL-{size})",
    ]
    if size == "8B":  # the others' vision heads are not told by shapes
        assert report.formats.total() == 7 * 36


@pytest.mark.parametrize("kind", ["bf16", "nvfp4_awq"])
def test_hole_in_the_numbering_of_layers_is_named(tmp_path, kind):
    gone = tuple(f"model.layers.{i}." for i in (7, 20, 21, 22))
    tensors = PACKED[kind](CUT)
    kept = replace(tensors, tensors={n: t for n, t in tensors.tensors.items() if not n.startswith(gone)})
    kept = replace(kept, contents={n: c for n, c in tensors.contents.items() if n in kept.tensors})
    (problem,) = inspect_checkpoint(write_packed(tmp_path / SINGLE, kept)).problems
    assert "expected decoder layers 0 to 49, got none with number 7, 20 to 22. A shard or a part" in problem


def test_hole_above_the_tap_does_not_matter(tmp_path):
    report = inspect_checkpoint(single(tmp_path, keep=lambda name: not name.startswith("model.layers.55.")))
    assert (report.problems, report.layers) == ((), 63)


def test_missing_shard_is_named_with_its_layers(tmp_path):
    folder = write_sparse_folder(tmp_path / "text_encoder", released_config())
    (folder / "model-00003-of-00014.safetensors").unlink()
    (problem,) = inspect_checkpoint(folder).problems
    assert "missing: model-00003-of-00014.safetensors (" in problem
    assert "needed tensors of layers 8 to 13)" in problem
    assert "Download the missing shards" in problem


def test_missing_shard_with_the_vision_tower_is_named(tmp_path):
    folder = write_sparse_folder(tmp_path / "text_encoder", released_config())
    (folder / "model-00014-of-00014.safetensors").unlink()
    assert "of the vision tower). Download" in inspect_checkpoint(folder).problems[0]


def test_vision_tower_without_deepstack_mergers_is_told(tmp_path):
    path = single(tmp_path, keep=lambda name: "deepstack" not in name)
    assert any("expected a vision tower with DeepStack mergers" in p for p in inspect_checkpoint(path).problems)


# names that claim something else

LABELS = {
    ("qwen3vl_32b_fp8_scaled.safetensors", "nvfp4_awq"): "The name says fp8, the tensors are nvfp4",
    ("qwen3vl-32b-NVFP4.safetensors", "fp8"): "The name says nvfp4, the tensors are fp8 per tensor",
    ("encoder_int8.safetensors", "bf16"): "The name says int8, the tensors are bf16",
    ("qwen3vl_bf16.safetensors", "int8_convrot"): "The name says bf16, the tensors are int8 convrot",
    ("qwen3vl_32b-Q4_K_M.safetensors", "fp8"): "The name says q4_k_m, the tensors are fp8 per tensor",
    ("qwen3vl_int4.safetensors", "nvfp4"): "The name says int4, the tensors are nvfp4",
}
TRUE_NAMES = [
    ("qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", "nvfp4_awq"), ("h3_fp8_e4m3fn_scaled.safetensors", "fp8_legacy"),
    ("qwen3vl_32b_minimax_h3_int8_convrot.safetensors", "int8_convrot"), ("encoder.safetensors", "nvfp4"),
    ("h3_bf16_to_fp8.safetensors", "fp8"), ("Qwen3-VL-32B.safetensors", "int8_row"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), LABELS)
def test_name_that_claims_another_format_is_noted(tmp_path, name, kind):
    report = inspect_checkpoint(write_packed(tmp_path / name, PACKED[kind](CUT)))
    assert report.problems == ()
    assert report.is_h3
    assert any(note.startswith(LABELS[name, kind]) for note in report.notes)


@pytest.mark.parametrize(("name", "kind"), TRUE_NAMES)
def test_name_that_fits_is_not_noted(tmp_path, name, kind):
    report = inspect_checkpoint(write_packed(tmp_path / name, PACKED[kind](CUT)))
    assert not any("The name says" in note for note in report.notes)


# GGUF


@pytest.mark.parametrize("family", ["A", "B", "C"])
def test_gguf_is_reported(tmp_path, family):
    config = released_config() if family == "C" else CUT
    path = write_sparse_gguf(tmp_path / "Qwen3-VL-32B-Q4_K_M.gguf", family, config)
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert report.has_vision
    assert report.format == "Q4_K (300) and Q6_K (50), Q6_K embedding"
    assert report.formats == {"Q4_K": 300, "Q6_K": 50}
    assert report.notes == ()
    assert len(report.files_needed) == (2 if family == "C" else 1)


def test_gguf_without_its_vision_file_serves_text_and_says_what_to_add(tmp_path):
    path = write_sparse_gguf(tmp_path / "model.gguf", "C", released_config())
    second = vision_path(path).rename(tmp_path / "second")
    report = inspect_checkpoint(path)
    assert report.problems == ()
    assert not report.has_vision
    assert "mmproj" in report.notes[0]
    assert inspect_checkpoint(path, vision=second).has_vision


def test_gguf_without_the_package_is_reported(tmp_path, monkeypatch):
    def missing(path):
        raise RuntimeError("GGUF: expected the gguf package, got none. Run pip install gguf.")

    monkeypatch.setattr(gguf_catalog, "read_gguf", missing)
    (tmp_path / "e.gguf").write_bytes(b"GGUF")
    assert inspect_checkpoint(tmp_path / "e.gguf").problems == (
        "GGUF: expected the gguf package, got none. Run pip install gguf.",
    )


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
