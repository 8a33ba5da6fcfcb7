"""Attention that other packs install in ComfyUI, wherever they do it, never reaches the text encoder."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import open_as, stored_as  # noqa: F401 (fixtures)

PICTURES = [
    {"type": "image", "data": picture(1, 64, 96)},
    {"type": "video", "data": picture(2, 64, 64, batch=2), "timestamps": [0.0, 0.5]},
]


def encode(clip) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox", minimax_ref_items=PICTURES))


def foreign(*args, **kwargs):
    raise AssertionError("a foreign attention was called")


@pytest.fixture
def overridden(comfy, monkeypatch):  # noqa: F811
    """Every attention function of ComfyUI, in every module that holds one, and every entry of its registry raises."""
    attention = importlib.import_module("comfy.ldm.modules.attention")
    importlib.import_module("comfy.text_encoders.llama")
    names = [
        n
        for n in vars(attention)
        if n.startswith(("optimized_attention", "attention_")) and callable(getattr(attention, n))
    ]
    assert {"optimized_attention", "optimized_attention_masked", "attention_pytorch"} <= set(names)
    originals = [getattr(attention, name) for name in names]
    for module in [m for name, m in sys.modules.items() if name.startswith("comfy.")]:
        for name, value in list(vars(module).items()):
            if any(value is original for original in originals):
                monkeypatch.setattr(module, name, foreign)
    for name in getattr(attention, "REGISTERED_ATTENTION_FUNCTIONS", {}):
        monkeypatch.setitem(attention.REGISTERED_ATTENTION_FUNCTIONS, name, foreign)
    return attention


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot"])
def test_replaced_attention_functions_do_not_reach_the_encoder(open_as, overridden, monkeypatch, kind):  # noqa: F811
    with pytest.raises(AssertionError, match="a foreign attention"):
        overridden.optimized_attention(None, None, None, 1)
    clip = open_as(kind)
    with_overrides = encode(clip)
    monkeypatch.undo()
    assert torch.equal(encode(clip), with_overrides)


def test_attention_override_in_the_models_options_does_not_reach_the_encoder(tiny_clip):  # noqa: F811
    plain, patched = encode(tiny_clip), tiny_clip.clone()
    options = patched.patcher.model_options.setdefault("transformer_options", {})
    options["optimized_attention_override"] = foreign
    options["patches_replace"] = {"attn1": {("double_block", 0): foreign}}
    assert torch.equal(encode(patched), plain)


def test_torchs_own_attention_is_what_is_called(tiny_clip, monkeypatch):  # noqa: F811
    from h3te.encoder import attention

    real, calls = attention.F.scaled_dot_product_attention, []

    def counted(*args, **kwargs):
        calls.append(args[0].shape[-1])
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    encode(tiny_clip)
    assert len(calls) == 6 * 2 + 5  # a block's frames of image and video, and every layer
