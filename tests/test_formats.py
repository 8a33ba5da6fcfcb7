"""Stored formats at real size (true headers and markers over holes): each linear resolves by its marker and scales, or
is refused (see test_format_refusals.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from h3te.encoder import inspect_checkpoint
from h3te.encoder.checkpoint.catalog import open_catalog
from h3te.encoder.checkpoint.fit import needed_shapes
from h3te.encoder.checkpoint.formats import Resolution, resolve
from h3te.encoder.checkpoint.report import read_dimensions
from h3te.encoder.checkpoint.wording import in_words, parts_in_words, spans
from h3te.encoder.config import EncoderConfig
from h3te_tests.checkpoint_files import (
    released_config,
    stored,
    write_sparse,
)
from h3te_tests.packed_headers import PACKED, block_fp8_folder, linears, write_packed

CONFIG = released_config(layers=50)
DOWN = "model.layers.7.mlp.down_proj"
RELEASED_DOWN = "model.language_model.layers.7.mlp.down_proj.weight"
NEEDED = needed_shapes(EncoderConfig.from_dict(CONFIG), 50)
PATCH = "model.visual.patch_embed.proj.weight"


def resolved(path: Path) -> Resolution:
    catalog = open_catalog(path, 50)
    return resolve(catalog, needed_shapes(read_dimensions(catalog), 50))


FORMATS = {
    "bf16": ("bf16", "bf16", 51_506_191_840),
    "nvfp4_awq": ("nvfp4", "nvfp4 with AWQ scales, int8 embedding", 15_686_911_143),
    "nvfp4": ("nvfp4", "nvfp4, bf16 embedding", None),
    "int8_convrot": ("int8 convrot", "int8 convrot, bf16 embedding", 27_141_161_040),
    "int8_row": ("int8 per row", "int8 per row, bf16 embedding", None),
    "int8_tensor": ("int8 per tensor", "int8 per tensor, bf16 embedding", None),
    "fp8": ("fp8 per tensor", "fp8 per tensor, bf16 embedding", None),
    "fp8_row": ("fp8 per row", "fp8 per row, bf16 embedding", None),
    "fp8_e5m2": ("fp8 e5m2 per tensor", "fp8 e5m2 per tensor, bf16 embedding", None),
    "fp8_metadata": ("fp8 per tensor", "fp8 per tensor, bf16 embedding", None),
    "fp8_legacy": ("fp8 per tensor", "fp8 per tensor, bf16 embedding", None),
    "fp8_blocks": ("fp8 by blocks of 128 x 128", "fp8 by blocks of 128 x 128, bf16 embedding", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_served_format_is_told_from_tensors_and_markers(tmp_path, kind):
    linear, line, payload = FORMATS[kind]
    tensors = PACKED[kind](CONFIG)
    assert payload in (None, tensors.nbytes)  # the released files' sizes, to the byte
    report = inspect_checkpoint(write_packed(tmp_path / "qwen3vl_32b.safetensors", tensors))
    assert report.problems == ()
    assert report.is_h3
    assert report.format == line
    assert report.formats == Counter({linear: 350})
    assert set(report.linear_formats.values()) == {linear}
    assert report.bytes_needed + report.bytes_unread == tensors.nbytes


def test_every_needed_weight_has_its_parts(tmp_path):
    path = write_packed(tmp_path / "e.safetensors", PACKED["nvfp4_awq"](CONFIG))
    found = resolved(path)
    assert found.problems == ()
    assert len(found.weights) == 902
    down = found.weights[RELEASED_DOWN]
    assert {part: (e.dtype, e.shape) for part, e in down.parts.items()} == {
        "weight": ("U8", (5120, 12800)), "weight_scale": ("F8_E4M3", (5120, 1600)), "weight_scale_2": ("F32", ()),
    }  # fmt: skip
    assert (down.packing.shape, down.input_scale.shape) == ((5120, 25600), (25600,))
    assert sum(stored.input_scale is not None for stored in found.weights.values()) == 100
    table = found.weights["model.language_model.embed_tokens.weight"]
    assert (table.format, table.parts["weight_scale"].shape) == ("int8 per row", (151936, 1))
    norm = found.weights["model.language_model.layers.7.input_layernorm.weight"]
    assert (norm.format, norm.packing) == ("bf16", None)


def test_marker_options_may_be_nested(tmp_path):
    marker = {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 64}}
    found = resolved(write_packed(tmp_path / "e.safetensors", PACKED["int8_row"](CONFIG).mark(DOWN, **marker)))
    assert (found.formats[RELEASED_DOWN], found.weights[RELEASED_DOWN].packing.group) == ("int8 convrot", 64)


@pytest.mark.parametrize("name", ["input_scale", "scale_input"])
def test_scales_of_activations_are_ignored(tmp_path, name):
    tensors = PACKED["fp8"](CONFIG).with_tensors(**{f"{DOWN}.{name}": ("F32", ())})
    assert resolved(write_packed(tmp_path / "e.safetensors", tensors)).problems == ()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_may_be_written_with_any_axes(tmp_path, shape):
    tensors = PACKED["fp8"](CONFIG).with_tensors(**{f"{DOWN}.weight_scale": ("F32", shape)})
    assert resolved(write_packed(tmp_path / "e.safetensors", tensors)).problems == ()


def test_layers_may_be_packed_in_different_ways(tmp_path):
    tensors, other = PACKED["nvfp4_awq"](CONFIG), PACKED["int8_convrot"](CONFIG)
    gates = [layer for layer in linears(CONFIG) if layer.endswith("gate_proj")]
    tensors = tensors.without(*(f"gate_proj.{part}" for part in ("weight_scale", "weight_scale_2", "comfy_quant")))
    taken = {n: t for n, t in other.tensors.items() if n.startswith(tuple(f"{gate}." for gate in gates))}
    contents = {n: c for n, c in other.contents.items() if n in taken}
    mixed = replace(tensors, tensors=tensors.tensors | taken, contents=tensors.contents | contents)
    report = inspect_checkpoint(write_packed(tmp_path / "e.safetensors", mixed))
    assert report.problems == ()
    assert report.formats == Counter({"nvfp4": 300, "int8 convrot": 50})
    assert report.format == "nvfp4 (300) and int8 convrot (50) with AWQ scales, int8 embedding"
    assert any("300 nvfp4, 50 int8 convrot" in note for note in report.notes)


def test_plain_types_may_differ_from_tensor_to_tensor(tmp_path):
    tensors = stored(CONFIG) | {DOWN + ".weight": ("F32", (5120, 25600))}
    tensors["visual.pos_embed.weight"] = ("F16", (2304, 1152))
    report = inspect_checkpoint(write_sparse(tmp_path / "e.safetensors", tensors))
    assert (report.problems, report.format) == ((), "bf16 (349) and fp32 (1)")


def test_block_fp8_folder(tmp_path):
    folder = block_fp8_folder(tmp_path / "a", CONFIG, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    report = inspect_checkpoint(folder)
    assert (report.problems, report.formats) == ((), Counter({"fp8 by blocks of 128 x 128": 350}))


def test_block_size_is_that_of_the_config(tmp_path):
    folder = block_fp8_folder(tmp_path / "a", CONFIG, {"quant_method": "fp8", "weight_block_size": [64, 128]})
    texts = inspect_checkpoint(folder).problems
    assert "expected weight_scale_inv as F32 [16, 40] for fp8 by blocks of 64 x 128 weights [1024, 5120]" in texts[1]


# GGUF: types and sizes that do not fit

NORM = "model.language_model.layers.7.input_layernorm.weight"
GGUF = {
    "a type that nothing unpacks": (RELEASED_DOWN, "IQ9_X", (5120, 25600), 9, "got IQ9_X (1 tensor: mlp.down_proj"),
    "a packed norm": (NORM, "Q8_0", (5120,), 5440, "expected norms and biases in bf16, fp16 or fp32, got Q8_0 [5120]"),
    "another shape": (RELEASED_DOWN, "Q8_0", (25600, 5120), 9, "expected the shape [5120, 25600], got Q8_0 [25600,"),
    "other bytes": (RELEASED_DOWN, "Q8_0", (5120, 25600), 9, "expected 139,264,000 bytes of Q8_0, got 9 (1 tensor"),
}


@pytest.mark.parametrize("what", GGUF)
def test_gguf_tensor_that_does_not_fit_is_refused(tmp_path, what):
    name, dtype, shape, nbytes, part = GGUF[what]
    catalog = open_catalog(write_packed(tmp_path / "e.safetensors", PACKED["bf16"](CONFIG)), 50)
    entry = replace(catalog.entries[name], dtype=dtype, shape=shape, nbytes=nbytes)
    found = resolve(replace(catalog, entries={**catalog.entries, name: entry}), NEEDED)
    assert part in found.problems[0]
    assert found.formats[name] == dtype
    assert name not in found.weights


def test_patch_embedding_in_slices_is_one_weight(tmp_path):
    name, catalog = PATCH, open_catalog(write_packed(tmp_path / "e.safetensors", PACKED["bf16"](CONFIG)), 50)
    part = replace(catalog.entries[name], dtype="F16", shape=(1152, 3, 16, 16))
    entries = {**catalog.entries, name: part, name + ".1": part}
    found = resolve(replace(catalog, entries=entries), NEEDED)
    assert found.problems == ()
    assert found.weights[name].packing.shape == (1152, 3, 2, 16, 16)
    assert list(found.weights[name].parts) == ["weight", "weight.1"]
    entries[name + ".1"] = replace(part, dtype="F32")
    (text,) = resolve(replace(catalog, entries=entries), NEEDED).problems
    assert "expected 2 slices as F16 [1152, 3, 16, 16], got F32 [1152, 3, 16, 16]" in text


# words


def test_many_names_become_few_words():
    layers = [
        f"model.language_model.layers.{i}.mlp.{kind}_proj.weight" for i in (0, 1, 2, 5) for kind in ("up", "down")
    ]
    assert in_words(layers) == "mlp.down_proj, mlp.up_proj of layers 0 to 2, 5"
    assert in_words(["model.visual.blocks.3.attn.qkv.weight"]) == "attn.qkv of vision block 3"
    assert in_words(["model.language_model.embed_tokens.weight", "model.visual.pos_embed.weight"]) == (
        "embed_tokens; visual.pos_embed"
    )
    names = [f"model.visual.blocks.0.x{i}.bias" for i in range(20)]
    assert in_words(names).endswith("and 14 more of vision block 0")
    assert spans(range(0, 90, 2)).endswith(", ...")
    assert parts_in_words([*layers, "visual.a", "model.embed_tokens.weight"]) == (
        "layers 0 to 2, 5, embed_tokens, the vision tower"
    )
