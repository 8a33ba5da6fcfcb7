"""ComfyUI's own encoder as the benchmark gives it a shorter file: its own loader, the same work as ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import layout
import pytest
import torch
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config
from packed_files import write_packed

sys.path.append(str(layout.ROOT / "benchmarks"))
import measure_host
import own_encoder
from bench_host import SAME
from shapes import Shape

SHAPE = Shape(9, ((256, 256), (288, 256)))


@pytest.fixture
def tiny_sizes(h3, comfy, monkeypatch):
    """The sizes of ComfyUI's own encoder exchanged for tiny ones, its 50 layers kept."""
    from comfy.text_encoders import llama, qwen3vl

    text, vision = tiny_config()["text_config"], tiny_config()["vision_config"]

    @dataclass
    class TinyConfig(llama.Qwen3VL_32BConfig):
        hidden_size: int = text["hidden_size"]
        intermediate_size: int = text["intermediate_size"]
        num_attention_heads: int = text["num_attention_heads"]
        num_key_value_heads: int = text["num_key_value_heads"]

    sizes = ("hidden_size", "intermediate_size", "depth", "deepstack_visual_indexes")
    monkeypatch.setitem(qwen3vl.QWEN3VL_CONFIGS, "qwen3vl_32b", TinyConfig)
    monkeypatch.setitem(qwen3vl.QWEN3VL_VISION, "qwen3vl_32b", {size: vision[size] for size in sizes})
    monkeypatch.setitem(qwen3vl.QWEN3VL_VISION_COMMON, "num_heads", vision["num_heads"])
    monkeypatch.setattr(comfy.sd, "detect_te_model", comfy.sd.detect_te_model)  # restored afterwards


@pytest.mark.parametrize("kind", ["bf16", "nvfp4_awq", "int8_convrot"])
def test_both_encoders_give_the_same_conditioning(tiny_sizes, tiny_checkpoint, tokenizer_folder, tmp_path, kind):
    file = write_packed(tiny_checkpoint, tmp_path / f"{kind}.safetensors", kind, tap=TAP_LAYER)
    hidden = {}
    for side in own_encoder.SIDES:
        clip = own_encoder.SIDES[side](file, TAP_LAYER, tokenizer_folder)
        with torch.inference_mode():
            hidden[side] = own_encoder.encode(clip, *SHAPE.request())
    assert hidden["ours"].shape == hidden["theirs"].shape and hidden["theirs"].isfinite().all()
    assert (hidden["ours"] - hidden["theirs"]).norm() / hidden["theirs"].norm() < SAME


def test_shortened_encoder_has_that_many_layers_and_every_weight(
    tiny_sizes, tiny_checkpoint, tokenizer_folder, tmp_path, caplog
):
    file = write_packed(tiny_checkpoint, tmp_path / "tiny.safetensors", "bf16", tap=TAP_LAYER)
    clip = own_encoder.theirs(file, TAP_LAYER, tokenizer_folder)
    assert len(clip.cond_stage_model.qwen3vl_32b.transformer.model.layers) == TAP_LAYER
    assert "missing" not in caplog.text and "unexpected" not in caplog.text


@pytest.mark.parametrize("cold", [True, False])
def test_request_is_measured_cold_and_warm(tiny_sizes, tiny_checkpoint, tokenizer_folder, tmp_path, cold):
    file = write_packed(tiny_checkpoint, tmp_path / "tiny.safetensors", "bf16", tap=TAP_LAYER)
    found = {
        side: measure_host.measure(side, file, SHAPE, TAP_LAYER, tokenizer_folder, cold, None)
        for side in own_encoder.SIDES
    }
    assert found["ours"]["tokens"] == found["theirs"]["tokens"] > 9
    assert all(("cold" in of) == cold and of["warm"] > 0 for of in found.values())
