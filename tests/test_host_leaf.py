"""The host leaf: what it keeps to itself and in which types it computes. Partial loading: test_partial_loading.py."""

from __future__ import annotations

import torch
from h3te_tests.comfy_host import comfy, make_tiny_clip, tiny_clip  # noqa: F401 (fixtures)


def test_leaves_do_not_share_their_function_lists(comfy):  # noqa: F811
    from h3te.nodes.host.leaf import HostLeaf

    first, second = HostLeaf(torch.ones(2)), HostLeaf(torch.ones(2))
    first.weight_function.append(lambda weight: weight * 2)
    with first.borrow(torch.ones(1)) as (weight, bias):
        assert weight.tolist() == [2, 2]
        assert bias is None
    with second.borrow(torch.ones(1)) as (weight, _):
        assert weight.tolist() == [1, 1]


def test_float32_computes_with_stored_bfloat16_weights(comfy, tiny_checkpoint, tokenizer_folder):  # noqa: F811
    wide = make_tiny_clip(tiny_checkpoint, tokenizer_folder, dtype=torch.float32)
    cond = wide.encode_from_tokens(wide.tokenize("a fox"))
    assert {p.dtype for p in wide.cond_stage_model.parameters()} == {torch.bfloat16}
    assert torch.equal(cond, wide.encoder.encode("a fox").hidden)


def test_long_loan_outlives_the_buffer_that_newer_hosts_cast_into(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host.leaf import HostLeaf

    buffer, ended = torch.zeros(3), []

    def cast(leaf, **options):
        return buffer.copy_(leaf.weight), None, None

    monkeypatch.setattr(comfy.ops, "cast_bias_weight", cast)
    monkeypatch.setattr(comfy.ops, "uncast_bias_weight", lambda leaf, *given: ended.append(leaf))
    first, second = HostLeaf(torch.ones(3)), HostLeaf(torch.full((3,), 2.0))
    elsewhere = torch.empty(0, device="meta")
    with first.borrow_long(elsewhere) as (one, bias), second.borrow_long(elsewhere) as (two, _):
        assert one.tolist() == [1, 1, 1]
        assert two.tolist() == [2, 2, 2]
        assert bias is None
        assert ended == [first, second]  # the host's own loans are over: it may use its buffer again
    with first.borrow_long(torch.empty(0)) as (one, _):
        assert one is buffer  # where the weight lies there is nothing to copy
