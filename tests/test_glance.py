"""A look at a header ranks files of the combo as the whole inspection does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from h3te.encoder.checkpoint import glance as module
from h3te.encoder.checkpoint import inspect_checkpoint
from h3te.encoder.checkpoint.glance import glance
from h3te_tests.checkpoint_files import (
    QWEN3_VL_2B,
    QWEN3_VL_8B,
    bare_name,
    released_config,
    stored,
    write_json,
    write_sparse,
    write_sparse_folder,
)
from h3te_tests.packed_headers import PACKED, Tensors, write_packed

WHOLE = released_config(layers=50)
NAME = "qwen3vl_32b.safetensors"
LAYER = "model.layers.7."


def agrees(path: Path) -> bool | None:
    """What the look says; where it says something, the inspection says the same."""
    said = glance(path)
    assert said in (None, inspect_checkpoint(path).is_h3)
    return said


@pytest.mark.parametrize("kind", PACKED)
def test_every_stored_format_is_judged_as_by_the_inspection(tmp_path, kind):
    said = agrees(write_packed(tmp_path / NAME, PACKED[kind](WHOLE)))
    assert said is (None if kind in NOT_SEEN else True)


NOT_SEEN = ("fp8_metadata", "fp8_legacy", "mxfp8", "int4_convrot", "w4a8")  # announced elsewhere, or refused


def official(name: str) -> str:
    return name


@pytest.mark.parametrize("rename", [bare_name, official])
@pytest.mark.parametrize("suffix", [".safetensors", ".sft"])
@pytest.mark.parametrize("layers", [50, 64])
def test_every_layout_is_recognised(tmp_path, rename, suffix, layers):
    assert agrees(write_sparse(tmp_path / f"m{suffix}", stored(released_config(layers=layers), rename=rename))) is True


def test_headers_as_the_library_writes_them_are_recognised(tmp_path):
    """No spaces, sorted by name, metadata first."""
    tensors = dict(sorted(PACKED["nvfp4_awq"](WHOLE).tensors.items()))
    path = write_sparse(tmp_path / NAME, tensors, {"format": "pt"}, contents=PACKED["nvfp4_awq"](WHOLE).contents)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    assert agrees(path) is True
    tight = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(tight)
    assert agrees(path) is True


def broken(config: dict) -> dict[str, Tensors]:
    """One thing of a whole file is wrong."""
    awq, fp8, plain = PACKED["nvfp4_awq"](config), PACKED["fp8"](config), PACKED["bf16"](config)
    o_proj = LAYER + "self_attn.o_proj"
    return {
        "no layer": plain.without(*(n for n in plain.tensors if n.startswith(LAYER))),
        "no norm": plain.without(LAYER + "input_layernorm.weight"),
        "no vision": plain.without(*(n for n in plain.tensors if n.startswith("visual."))),
        "no merger": plain.without(*(n for n in plain.tensors if "deepstack" in n)),
        "no vision bias": plain.without("visual.blocks.3.attn.qkv.bias"),
        "no table": plain.without("model.embed_tokens.weight"),
        "no scale": awq.without(o_proj + ".weight_scale"),
        "no AWQ scale": awq.without(o_proj + ".pre_quant_scale"),
        "no marker": awq.without(o_proj + ".comfy_quant"),
        "unknown marker": fp8.mark(o_proj, format="mxfp8"),
        "unreadable marker": fp8.mark(o_proj, nothing=1),
        "another shape": plain.with_tensors(**{o_proj + ".weight": ("BF16", (5120, 8191))}),
        "another type": plain.with_tensors(**{o_proj + ".weight": ("I8", (5120, 8192))}),
        "type of a norm": plain.with_tensors(**{LAYER + "input_layernorm.weight": ("I64", (5120,))}),
        "unknown tensor": plain.with_tensors(**{LAYER + "mlp.other.weight": ("BF16", (5,))}),
        "unknown vision tensor": plain.with_tensors(**{"visual.other.weight": ("BF16", (5,))}),
        "bias of Qwen2": plain.with_tensors(**{LAYER + "self_attn.q_proj.bias": ("BF16", (8192,))}),
        "AWQ": plain.with_tensors(**{LAYER + "self_attn.q_proj.qweight": ("I32", (8, 8))}),
        "two layouts": plain.with_tensors(**{"layers.0.input_layernorm.weight": ("BF16", (5120,))}),
        "layer of three digits": plain.with_tensors(**{"model.layers.100.input_layernorm.weight": ("BF16", (5120,))}),
        "legacy mark": plain.with_tensors(scaled_fp8=("F8_E4M3", (2,))),
        "demo": Tensors(plain.tensors, metadata={"h3te_demo": "true"}),
        "config": Tensors(plain.tensors, metadata={"config": json.dumps({**config, "quantization_config": {}})}),
        "metadata in braces": Tensors(plain.tensors, metadata={"modelspec": "{}"}),
    }  # fmt: skip


@pytest.mark.parametrize("what", broken(WHOLE))
def test_what_one_tensor_changes_is_never_told_otherwise_than_by_the_inspection(tmp_path, what):
    path = write_packed(tmp_path / NAME, broken(WHOLE)[what])
    assert agrees(path) is not True
    assert agrees(path.rename(tmp_path / "other.safetensors")) is not True


def test_layers_of_several_formats_are_judged_by_the_first_of_each(tmp_path):
    awq, fp8, plain = (PACKED[kind](WHOLE) for kind in ("nvfp4_awq", "fp8", "bf16"))

    def mixed(name: str):
        number = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
        return {0: fp8, 20: plain}.get(number, awq)

    names = dict.fromkeys([*awq.tensors, *fp8.tensors])
    tensors = {n: mixed(n).tensors[n] for n in names if n in mixed(n).tensors}
    contents = {n: mixed(n).contents[n] for n in tensors if n in mixed(n).contents}
    assert agrees(write_packed(tmp_path / NAME, Tensors(tensors, contents))) is True


@pytest.mark.parametrize("config", [QWEN3_VL_8B, QWEN3_VL_2B, {"width": 4096, "layers": 60}, {"layers": 49}])
def test_other_models_are_told_without_an_inspection(tmp_path, config):
    assert agrees(write_sparse(tmp_path / NAME, stored(released_config(**config)))) is False


def test_experts_in_a_header_of_many_names_are_told_without_an_inspection(tmp_path):
    tensors = {f"model.layers.{i % 60}.mlp.experts.{i}.up_proj.weight": ("BF16", (1,)) for i in range(20_000)}
    assert agrees(write_sparse(tmp_path / NAME, tensors)) is False


def test_escaped_names_are_left_to_the_inspection(tmp_path):
    path = write_sparse(tmp_path / NAME, {"model.layers.0.x": ("BF16", (1,)), "\u00e4": ("BF16", (1,))})
    assert agrees(path) is None


@pytest.mark.parametrize("content", [b"", b"x", b"GGUF" + bytes(60), b"\x10" + bytes(7) + b"{not json", bytes(100)])
def test_files_that_are_no_checkpoint_are_told_without_an_inspection(tmp_path, content):
    path = tmp_path / NAME
    path.write_bytes(content)
    assert agrees(path) is False
    assert agrees(tmp_path / "gone.safetensors") is False


def test_incomplete_download_is_not_taken_for_an_encoder(tmp_path):
    assert agrees(write_sparse(tmp_path / NAME, stored(WHOLE), short_by=1)) is None


def test_header_that_is_announced_longer_than_any_is_not_read(tmp_path):
    path = tmp_path / NAME
    with path.open("wb") as file:
        file.write((90_000_000).to_bytes(8, "little") + b"{")
        file.truncate(10**9)
    assert agrees(path) is False


def test_config_beside_a_file_is_left_to_the_inspection(tmp_path):
    path = write_sparse(tmp_path / NAME, stored(WHOLE))
    write_json(tmp_path / "config.json", WHOLE)
    assert agrees(path) is None


def test_folders_are_left_to_the_inspection_and_their_shards_are_no_encoders(tmp_path):
    folder = write_sparse_folder(tmp_path / "text_encoder", released_config())
    assert agrees(folder) is None
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 5 and not any(agrees(shard) for shard in shards)
    assert agrees(shards[0]) is False


def test_gguf_files_are_left_to_the_inspection(tmp_path):
    from h3te_tests.gguf_files import write_sparse_gguf

    assert agrees(write_sparse_gguf(tmp_path / "m.gguf", "C", released_config())) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are files here alone")
def test_pipe_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / NAME)
    assert agrees(tmp_path / NAME) is False


def test_recognised_encoder_is_not_inspected_whole(tmp_path, monkeypatch):
    """Only one layer is resolved."""
    resolved = []
    resolve = module.resolve
    monkeypatch.setattr(
        module, "resolve", lambda catalog, needed: resolved.append(len(needed)) or resolve(catalog, needed)
    )
    assert glance(write_sparse(tmp_path / NAME, stored(WHOLE))) is True
    assert resolved == [12]
