"""Packed and streamed weights in ComfyUI: what it counts, what its loader says, and its own kernels."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from h3te_tests.checkpoint_files import released_config
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from h3te_tests.one_device import CPU
from h3te_tests.packed_headers import PACKED as HEADERS
from h3te_tests.packed_headers import write_packed as write_headers
from h3te_tests.packed_host import (  # noqa: F401 (fixtures)
    KINDS,
    PACKED,
    leaves,
    like_a_device,
    open_as,
    pictures,
    stored_as,
)

AWQ_NAME = "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"


def encode(clip, presentation=None, device=None):
    return clip.encoder.encode_presentation(presentation or pictures(clip), device=device).hidden


@pytest.mark.parametrize("kind", KINDS)
def test_host_counts_the_stored_bytes(comfy, open_as, kind):  # noqa: F811
    """What ComfyUI weighs for its budgets is what the file holds, but for the parts' alignment, without the table."""
    clip = open_as(kind)
    clip.patcher.size = 0
    weights = clip.encoder.source.weights
    stored = sum(w.nbytes for name, w in weights.items() if not name.endswith("embed_tokens.weight"))
    parts = sum(len(w.parts) for w in weights.values())
    scales = sum(w.input_scale.nbytes for w in weights.values() if w.input_scale is not None)
    assert 0 <= clip.patcher.model_size() - (stored - scales) < parts * 16


@pytest.mark.parametrize("kind", KINDS)
def test_whole_way_through_load_models_gpu(open_as, kind):  # noqa: F811
    clip = open_as(kind)
    direct = encode(clip, clip.tokenize("a fox <d>hi</d>")["qwen3vl_32b"].presentation)
    assert torch.equal(clip.encode("a fox <d>hi</d>"), direct.float())
    assert all(leaf.weight.is_meta for leaf in leaves(clip) if leaf.rest is not None)  # no zeros in their place
    assert torch.equal(clip.encode("a fox <d>hi</d>"), direct.float())


# ComfyUI's own kernels


@pytest.mark.skipif(importlib.util.find_spec("comfy_kitchen") is None, reason="this ComfyUI has no comfy_kitchen")
@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4_awq", "int8_row", "fp8", "nvfp4_awq streamed"])
def test_encode_with_comfyuis_kernels_gives_our_bits(comfy, open_as, monkeypatch, kind):  # noqa: F811
    from h3te.nodes.host import kernels
    from h3te.nodes.host.local_computing import kernels_of
    from h3te.nodes.host.report import details

    expected = open_as(kind).encode("a fox")
    monkeypatch.setattr(kernels, "REAL_BACKENDS", ("eager",))  # taken for a real one
    kernels._refusal.cache_clear()
    clip = open_as(kind, unpack="comfyui")
    assert all(
        leaf.packing is None or any(k.fits(leaf.packing, CPU) for k in kernels_of(clip.patcher))
        for leaf in leaves(clip)
    )
    for packing in {type(leaf.packing) for leaf in leaves(clip)} - {type(None)}:
        monkeypatch.setattr(packing, "rows", None)  # ours is not asked
    assert torch.equal(clip.encode("a fox"), expected)
    said = details(clip, clip.tokenize("a fox"))
    assert any(line.endswith("weights are unpacked by ComfyUI's own kernels") for line in said)
    kernels._refusal.cache_clear()


def test_loader_refuses_kernels_that_cannot_be_had(text_encoders, demo_folder):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.host.local_computing import kernels_of
    from h3te.nodes.load_text_encoder import LoadTextEncoder
    from packed_files import write_packed

    write_packed(demo_folder, text_encoders / "h3.safetensors", "int8_row")
    options = EncoderOptionsNode.execute(unpack="comfyui").args[0]
    with pytest.raises(RuntimeError, match=r"ComfyUI's own kernels for int8 weights of \d+ columns on cpu, got none"):
        LoadTextEncoder.execute("h3.safetensors", "cpu", options)
    place(demo_folder, text_encoders / "h3" / "text_encoder")
    clip = LoadTextEncoder.execute("h3/text_encoder/", "cpu", options).args[0]
    assert kernels_of(clip.patcher) == ()  # nothing to unpack


# the loader


def test_real_size_nvfp4_awq_loads_without_weights_and_says_the_right_numbers(text_encoders):  # noqa: F811
    from h3te.nodes.host import paths
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    write_headers(text_encoders / AWQ_NAME, HEADERS["nvfp4_awq"](released_config(layers=50)))
    assert LoadTextEncoder.validate_inputs(AWQ_NAME) is True
    paths._reports.clear()
    output = LoadTextEncoder.execute(AWQ_NAME)
    said, clip = output.ui["text"][0], output.args[0]
    assert "nvfp4 with AWQ scales, int8 embedding, 50 layers, 5120 wide, vision tower, 15.69 GB needed" in said
    assert "15.7 GB needed" in said  # how they would be read
    assert clip.label.startswith("nvfp4 with AWQ scales, int8 embedding")
    assert not clip.encoder.is_loaded
    assert clip.cond_stage_model.norms_carry_scales
    assert 14.9e9 < clip.encoder.weight_bytes < 15.7e9
    assert clip.patcher.model_size() < clip.encoder.weight_bytes - 7e8  # without the table


def test_encode_says_format_reading_and_room(text_encoders, demo_folder):  # noqa: F811
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.load_text_encoder import LoadTextEncoder
    from packed_files import write_packed

    write_packed(demo_folder, text_encoders / "h3.safetensors", "nvfp4_awq")
    clip = LoadTextEncoder.execute("h3.safetensors", "cpu").args[0]
    said = EncodeKeyframes.execute(clip=clip, prompt="a fox", width=64, height=64, length=5).ui["text"][0]
    assert "nvfp4 with AWQ scales, int8 embedding" in said
    assert "of RAM free" in said
    assert "resident" in said


@pytest.mark.parametrize("kind", PACKED)
def test_weights_stay_packed_while_they_rest_and_when_loaded(open_as, like_a_device, kind):  # noqa: F811
    clip = open_as(kind)
    encode(clip)
    clip.patcher.partially_load(CPU, 10**12)
    packed = [leaf for leaf in leaves(clip) if leaf.packing is not None]
    assert len(packed) >= 35  # seven linears in each of five layers
    assert all(leaf.weight.dtype == torch.uint8 and leaf.weight.numel() == leaf.packing.nbytes for leaf in packed)
    clip.patcher.detach()
