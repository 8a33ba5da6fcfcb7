"""GGUF checkpoints by family: names, shapes, key-values, the vision file, and what is refused."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_plan import Types
from h3te.encoder.checkpoint import inspect_checkpoint
from h3te.encoder.checkpoint.catalog import open_catalog
from h3te.encoder.checkpoint.fit import needed_shapes
from h3te.encoder.config import EncoderConfig
from h3te_tests.checkpoint_files import QWEN3_VL_8B, released_config
from h3te_tests.gguf_files import NAMES, TINY, WIDE, vision_path, write_sparse_gguf, write_sparse_vision
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config
from safetensors.torch import save_file

PATCH_EMBED = "model.visual.patch_embed.proj.weight"


def write_tiny(path: Path, family: str, **changes) -> Path:
    return write_sparse_gguf(path, family, tiny_config(), **{"types": TINY, **changes})


@pytest.mark.parametrize("family", NAMES)
def test_real_size_file_has_every_released_name_in_its_released_shape(family, tmp_path):
    config = released_config()
    path = write_sparse_gguf(tmp_path / "qwen3vl_32b.gguf", family, config)
    catalog = open_catalog(path, 50)
    assert catalog.layout == f"gguf ({NAMES[family]} names)"
    needed = needed_shapes(EncoderConfig.from_dict(config), 50)
    assert {name: catalog.shapes.get(name) for name in needed} == needed
    known = shapes(config)
    assert {n: s for n, s in catalog.shapes.items() if known.get(n) != s and n != PATCH_EMBED + ".1"} == {}
    assert EncoderConfig.from_shapes(catalog.shapes) == EncoderConfig.from_dict(config)


@pytest.mark.parametrize("family", NAMES)
def test_files_are_those_that_hold_something_needed(family, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", family)
    (tmp_path / "other.gguf").write_bytes(b"GGUF, another model's")
    files = open_catalog(path, TAP_LAYER).files_needed
    assert files == ((path, vision_path(path)) if family == "C" else (path,))


def test_flattened_tensors_lie_where_the_package_sees_them(tmp_path):
    """Family B: the entry has the released shape, and the bytes of all its values."""
    path = write_tiny(tmp_path / "m.gguf", "B", types=Types(vision="Q6_K"))
    entries = open_catalog(path, TAP_LAYER).entries
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    flattened = [e for e in entries.values() if list(e.shape) != stored[e.stored_name].shape.tolist()[::-1]]
    assert len(flattened) > 10 and {entry.dtype for entry in flattened} == {"Q6_K"}
    for entry in entries.values():
        tensor = stored[entry.stored_name]
        assert (entry.offset, entry.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert int(np.prod(entry.shape)) == tensor.n_elements


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_patch_embedding_written_with_fewer_axes_has_its_five(rank, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3vl")
    shape = {1: (16 * 1536,), 2: (16, 1536), 4: (16, 6, 16, 16)}[rank]
    writer.add_tensor("visual.patch_embed.proj.weight", np.zeros(shape, np.float16))
    writer.add_tensor("model.embed_tokens.weight", np.zeros((8, 4), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_catalog(tmp_path / "m.gguf", 1).shapes[PATCH_EMBED] == (16, 3, 2, 16, 16)


@pytest.mark.parametrize("turned", [lambda n: n + 1, float, lambda n: -n], ids=["other", "float", "negative"])
def test_shape_key_that_does_not_fit_its_tensor_is_refused(turned, tmp_path):
    shape = shapes(tiny_config())["model.language_model.embed_tokens.weight"]
    changes = {"comfy.gguf.orig_shape.model.embed_tokens.weight": [turned(n) for n in shape]}
    with pytest.raises(ValueError, match=r"expected comfy.gguf.orig_shape.model.embed_tokens.weight to be a shape of"):
        open_catalog(write_tiny(tmp_path / "m.gguf", "B", values=changes), TAP_LAYER)


# the vision file


def test_vision_file_is_found_beside_among_others(tmp_path):
    path = write_tiny(tmp_path / "Qwen3-VL-32B-Q4_K_M.gguf", "C")
    wanted = vision_path(path).rename(tmp_path / "a vision file.gguf")
    other = tiny_config(hidden_size=128)
    other["vision_config"]["out_hidden_size"] = 128
    write_sparse_vision(tmp_path / "mmproj-other-width.gguf", other)
    (tmp_path / "mmproj-broken.gguf").write_bytes(wanted.read_bytes()[:5000])
    assert open_catalog(path, TAP_LAYER).files_needed == (path, wanted)


def test_vision_file_beside_may_have_any_case(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    wanted = vision_path(path).rename(tmp_path / "MMPROJ.GGUF")
    assert open_catalog(path, TAP_LAYER).files_needed == (path, wanted)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are files here alone")
def test_search_for_the_vision_file_opens_files_alone(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    os.mkfifo(tmp_path / "mmproj-a.gguf")
    (tmp_path / "mmproj-b.gguf").mkdir()
    (tmp_path / "mmproj-c.gguf").symlink_to("/dev/zero")
    (tmp_path / "mmproj-d.gguf").symlink_to(tmp_path / "gone")
    assert open_catalog(path, TAP_LAYER).files_needed == (path, vision_path(path))


def test_search_for_the_vision_file_passes_over_what_may_not_be_opened(tmp_path, monkeypatch):
    path = write_tiny(tmp_path / "m.gguf", "C")
    locked, opened = Path(shutil.copy(vision_path(path), tmp_path / "locked.gguf")), Path.open

    def refuse(self, *args, **kwargs):
        if self == locked:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    assert open_catalog(path, TAP_LAYER).files_needed == (path, vision_path(path))
    monkeypatch.undo()  # it may be opened now, and fits
    assert open_catalog(path, TAP_LAYER).files_needed[1] == locked


def test_vision_file_may_be_named(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    (tmp_path / "elsewhere").mkdir()
    named = vision_path(path).rename(tmp_path / "elsewhere" / "v.gguf")
    assert not any(name.startswith("model.visual.") for name in open_catalog(path, TAP_LAYER).entries)
    catalog = open_catalog(path, TAP_LAYER, named)
    assert catalog.files_needed == (path, named) and catalog.shapes[PATCH_EMBED] == (144, 3, 2, 16, 16)


def test_of_several_vision_files_that_fit_the_largest_is_taken_and_told(tmp_path, caplog):
    path = write_tiny(tmp_path / "m.gguf", "C")
    best = write_sparse_vision(tmp_path / "mmproj-F32.gguf", tiny_config(), types=Types(vision="F32"))
    with caplog.at_level(logging.WARNING):
        assert open_catalog(path, TAP_LAYER).files_needed == (path, best)
    assert "2 vision files fit (mmproj-F32.gguf, mmproj-m.gguf): the largest is used" in caplog.text


def test_missing_vision_file_is_told_by_name_and_serves_text(tmp_path):
    path = write_tiny(tmp_path / "Qwen3-VL-32B-Q4_K_M.gguf", "C", vision=False)
    catalog = open_catalog(path, TAP_LAYER)
    assert EncoderConfig.from_shapes(catalog.shapes).vision is None
    assert catalog.vision_hint.startswith("Qwen3-VL-32B-Q4_K_M.gguf holds no vision part. Put its vision file, a .gguf")
    assert "mmproj" in catalog.vision_hint and str(tmp_path) in catalog.vision_hint


def test_vision_files_that_do_not_fit_are_told_when_none_does(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C", vision=False)
    other = tiny_config(hidden_size=128)
    other["vision_config"]["out_hidden_size"] = 128
    broken = write_sparse_vision(tmp_path / "mmproj-8b.gguf", other)
    hint = open_catalog(path, TAP_LAYER).vision_hint
    assert "(found: mmproj-8b.gguf is for a model 128 wide)" in hint
    os.truncate(broken, broken.stat().st_size - 100)
    assert "The download is incomplete" in open_catalog(path, TAP_LAYER).vision_hint
    with pytest.raises(ValueError, match=r"mmproj-8b.gguf: expected .* The download is incomplete"):
        open_catalog(path, TAP_LAYER, broken)


def test_named_vision_file_of_another_kind_or_width_is_refused(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    with pytest.raises(ValueError, match=r"copy.gguf: expected a vision file of Qwen3-VL .* got tensors such as blk"):
        open_catalog(path, TAP_LAYER, Path(shutil.copy(path, tmp_path / "copy.gguf")))
    other = tiny_config(hidden_size=128)
    other["vision_config"]["out_hidden_size"] = 128
    with pytest.raises(ValueError, match=r"v.gguf: expected a vision file for a model 64 wide, got one for 128"):
        open_catalog(path, TAP_LAYER, write_sparse_vision(tmp_path / "v.gguf", other))
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf"):
        open_catalog(path, TAP_LAYER, tmp_path / "absent.gguf")


def test_second_vision_file_where_none_belongs_is_refused(tmp_path):
    path = write_tiny(tmp_path / "a.gguf", "A")
    with pytest.raises(ValueError, match=r"a.gguf: expected no second vision file, got v.gguf"):
        open_catalog(path, TAP_LAYER, tmp_path / "v.gguf")
    with pytest.raises(ValueError, match=r"expected a vision file for .gguf files alone, got v.gguf"):
        open_catalog(tmp_path, TAP_LAYER, tmp_path / "v.gguf")


def test_empty_name_of_the_vision_file_is_none(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    assert open_catalog(path, TAP_LAYER, "").files_needed == (path, vision_path(path))


def test_safetensors_file_named_as_the_vision_file_is_refused_for_what_it_is(tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    named = tmp_path / "vision.safetensors"
    save_file({"v.blk.0.ln1.weight": torch.zeros(2)}, named)
    with pytest.raises(ValueError, match=r"vision.safetensors: expected a GGUF file, got a safetensors file\. Choose"):
        open_catalog(path, TAP_LAYER, named)
    with pytest.raises(ValueError, match=rf"{tmp_path.name}: expected a file, got a folder"):
        open_catalog(path, TAP_LAYER, tmp_path)


def test_vision_file_chosen_as_the_model_says_so(tmp_path):
    path = vision_path(write_tiny(tmp_path / "m.gguf", "C"))
    with pytest.raises(ValueError, match=r"mmproj-m.gguf: expected the text encoder, got its vision file"):
        open_catalog(path, TAP_LAYER)


# key-values


@pytest.mark.parametrize("architecture", [[1, 2], 5, True])
def test_architecture_that_is_no_text_is_refused(architecture, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C", values={"general.architecture": architecture})
    with pytest.raises(ValueError, match=r"m\.gguf: expected the architecture qwen3vl, got .*\. Use"):
        open_catalog(path, TAP_LAYER)


FOREIGN = {
    "qwen3": "'qwen3' (the text-only Qwen3)", "llama": "(Llama)", "qwen2vl": "(Qwen2-VL or Qwen2.5-VL)",
    "gpt9": "'gpt9'. Use",
}  # fmt: skip


@pytest.mark.parametrize("architecture", FOREIGN)
def test_another_architecture_is_refused_by_name(architecture, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C", values={"general.architecture": architecture})
    with pytest.raises(ValueError) as caught:
        open_catalog(path, TAP_LAYER)
    assert "expected the architecture qwen3vl, got " in str(caught.value) and FOREIGN[architecture] in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [
    ("embedding_length", 128), ("block_count", 7), ("attention.head_count_kv", 4), ("rope.freq_base", 1e6),
    ("rope.dimension_sections", [16, 24, 24, 0]), ("attention.layer_norm_rms_epsilon", 1e-5),
])  # fmt: skip
def test_key_value_that_contradicts_the_computation_is_refused(key, value, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C", values={f"qwen3vl.{key}": value})
    with pytest.raises(ValueError, match=rf"m.gguf: expected qwen3vl.{key} to be .*, got"):
        open_catalog(path, TAP_LAYER)


@pytest.mark.parametrize(("key", "value"), [("patch_size", 14), ("attention.head_count", 4), ("spatial_merge_size", 4)])
def test_key_value_of_the_vision_file_that_contradicts_is_refused(key, value, tmp_path):
    path = write_tiny(tmp_path / "m.gguf", "C")
    write_sparse_vision(vision_path(path), tiny_config(), {f"clip.vision.{key}": value})
    with pytest.raises(ValueError, match=rf"mmproj-m.gguf: expected clip.vision.{key} to be .*, got {value}"):
        open_catalog(path, TAP_LAYER)


def test_other_places_of_the_deepstack_mergers_are_refused(tmp_path):
    path, config = write_tiny(tmp_path / "m.gguf", "C"), tiny_config()
    config["vision_config"]["deepstack_visual_indexes"] = [0, 2, 4]
    write_sparse_vision(vision_path(path), config)
    with pytest.raises(ValueError, match=r"expected DeepStack mergers after the vision blocks \[1, 3, 5\], got \[0, 2"):
        open_catalog(path, TAP_LAYER)


def test_absent_key_values_are_no_contradiction(tmp_path):
    absent = dict.fromkeys(("qwen3vl.rope.freq_base", "qwen3vl.rope.dimension_sections", "general.architecture"))
    assert open_catalog(write_tiny(tmp_path / "m.gguf", "C", values=absent), TAP_LAYER).layout.endswith(
        "llama.cpp names)"
    )


@pytest.mark.parametrize("value", [True, False])
def test_demo_weights_say_so(value, tmp_path):
    assert open_catalog(write_tiny(tmp_path / "m.gguf", "C", values={"h3te_demo": value}), TAP_LAYER).is_demo is value


# the doctor


@pytest.mark.parametrize("family", NAMES)
def test_doctor_accepts_files_of_real_size(family, tmp_path):
    config = released_config()
    if family != "C":
        config["text_config"]["num_hidden_layers"] = 50
    path = write_sparse_gguf(tmp_path / "qwen3vl_32b_minimax_h3.gguf", family, config, WIDE, vocabulary=1000)
    report = inspect_checkpoint(path)
    assert report.problems == () and report.is_h3 and report.has_vision
    assert "Q4_K" in report.format and report.layers == config["text_config"]["num_hidden_layers"]


def test_doctor_tells_a_sibling_by_its_width(tmp_path):
    report = inspect_checkpoint(write_sparse_gguf(tmp_path / "m.gguf", "C", released_config(**QWEN3_VL_8B)))
    assert not report.is_h3 and "Qwen3-VL-8B" in " ".join(report.problems)


def test_doctor_takes_a_model_without_its_vision_file_for_text(tmp_path):
    path = write_sparse_gguf(tmp_path / "model.gguf", "C", released_config())
    vision_path(path).unlink()
    report = inspect_checkpoint(path)
    assert report.problems == () and report.is_h3 and not report.has_vision
    assert "mmproj" in report.describe() + " ".join(getattr(report, "notes", ()))


@pytest.mark.parametrize("short_by", [1, 10**9])
def test_doctor_reports_an_incomplete_download(short_by, tmp_path):
    path = write_sparse_gguf(tmp_path / "m.gguf", "A", released_config())
    os.truncate(path, path.stat().st_size - short_by)
    assert "The download is incomplete" in inspect_checkpoint(path).problems[0]
