"""Tests for a ComfyUI that has H3 nodes of its own (0.30 or newer): COMFYUI_PATH names it.

Kept out of the plain test run by directory, as the ComfyUI that set-up installs is older. `make test-host` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import comfy, tiny_clip  # noqa: F401 (fixtures for every test here)
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights


@pytest.fixture(scope="session")
def h3(comfy: SimpleNamespace) -> SimpleNamespace:  # noqa: F811
    """The host's own H3 nodes."""
    if not (comfy.folder / "comfy_extras" / "nodes_minimax_h3.py").exists():
        pytest.skip(f"{comfy.folder} has no H3 nodes of its own: set COMFYUI_PATH to ComfyUI 0.30 or newer")
    from comfy_extras import nodes_minimax_h3

    return nodes_minimax_h3


@pytest.fixture
def own_clip(h3, comfy, monkeypatch):  # noqa: F811
    """The host's own H3 text encoder with the tiny weights, its fixed sizes exchanged for tiny ones."""
    from comfy.text_encoders import llama, minimax, qwen3vl

    text, vision = tiny_config()["text_config"], tiny_config()["vision_config"]

    @dataclass
    class TinyConfig(llama.Qwen3VL_32BConfig):
        hidden_size: int = text["hidden_size"]
        intermediate_size: int = text["intermediate_size"]
        num_hidden_layers: int = TAP_LAYER
        num_attention_heads: int = text["num_attention_heads"]
        num_key_value_heads: int = text["num_key_value_heads"]

    sizes = ("hidden_size", "intermediate_size", "depth", "deepstack_visual_indexes")
    monkeypatch.setitem(qwen3vl.QWEN3VL_CONFIGS, "qwen3vl_32b", TinyConfig)
    monkeypatch.setitem(qwen3vl.QWEN3VL_VISION, "qwen3vl_32b", {size: vision[size] for size in sizes})
    monkeypatch.setitem(qwen3vl.QWEN3VL_VISION_COMMON, "num_heads", vision["num_heads"])
    target = SimpleNamespace(
        params={}, clip=minimax.te(dtype_llama=torch.bfloat16), tokenizer=minimax.MiniMaxH3Tokenizer
    )
    return comfy.sd.CLIP(target, state_dict=[dict(_single_file_weights())])


def _single_file_weights():
    kept = tuple(f"model.language_model.layers.{i}." for i in range(TAP_LAYER))
    for name, tensor in tiny_weights():
        if name.startswith((*kept, "model.language_model.embed_tokens.")):
            yield name.replace("model.language_model.", "model."), tensor
        elif name.startswith("model.visual."):
            yield name.removeprefix("model."), tensor
