"""The host leaf under ComfyUI's plain model patcher: partly loaded equals fully loaded, on one device throughout."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import comfy, make_tiny_clip, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import META, OneDevice, pictures

CPU = torch.device("cpu")


@pytest.fixture
def request_tokens(tiny_clip):  # noqa: F811
    return pictures(tiny_clip)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 3.0])
def test_partial_loading_equals_full_loading(tiny_clip, request_tokens, share):  # noqa: F811
    full = tiny_clip.encoder.encode_presentation(request_tokens).hidden
    patcher = tiny_clip.patcher
    patcher.partially_load(CPU, int(share * patcher.model_size()) or 1)
    try:
        assert torch.equal(tiny_clip.encoder.encode_presentation(request_tokens).hidden, full)
    finally:
        patcher.detach()


@pytest.mark.parametrize("share", [0.0, 0.8, 3.0])
def test_every_op_runs_on_the_compute_device(tiny_clip, request_tokens, share):  # noqa: F811
    tiny_clip.encoder.materialise()
    patcher = tiny_clip.patcher
    patcher.load_device = META
    patcher.partially_load(META, int(share * patcher.model_size()) or 1)
    with OneDevice():
        hidden = tiny_clip.encoder.encode_presentation(request_tokens, device=META).hidden
    assert hidden.device == META
    assert (patcher.loaded_size() == patcher.model_size()) == (share > 1)
    patcher.detach()
    assert tiny_clip.encoder.is_loaded
    assert tiny_clip.encoder.encode_presentation(request_tokens).hidden.isfinite().all()


def test_one_device_mode_catches_a_plain_linear():
    linear = torch.nn.Linear(8, 8, bias=False)
    with OneDevice(), pytest.raises(RuntimeError, match=r"\['cpu', 'meta'\]"):
        linear(torch.empty(2, 8, device=META))


def test_leaves_do_not_share_their_function_lists(comfy):  # noqa: F811
    from h3te.nodes.host.leaf import HostLeaf

    first, second = HostLeaf(torch.ones(2)), HostLeaf(torch.ones(2))
    first.weight_function.append(lambda weight: weight * 2)
    with first.borrow(torch.ones(1)) as (weight, bias):
        assert weight.tolist() == [2, 2]
        assert bias is None
    with second.borrow(torch.ones(1)) as (weight, _):
        assert weight.tolist() == [1, 1]


def test_every_weight_is_in_a_leaf_that_casts_itself(tiny_clip):  # noqa: F811
    for name, module in tiny_clip.cond_stage_model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            assert module.comfy_cast_weights, name
            assert not list(module.buffers(recurse=False)), name


def test_float32_computes_with_stored_bfloat16_weights(comfy, tiny_checkpoint, tokenizer_folder):  # noqa: F811
    wide = make_tiny_clip(tiny_checkpoint, tokenizer_folder, dtype=torch.float32)
    cond = wide.encode_from_tokens(wide.tokenize("a fox"))
    assert {p.dtype for p in wide.cond_stage_model.parameters()} == {torch.bfloat16}
    assert torch.equal(cond, wide.encoder.encode("a fox").hidden)
