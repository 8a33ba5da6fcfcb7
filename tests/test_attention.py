"""Grouped heads, and repeated keys where torch or the device does not take them: the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from h3te.encoder import attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 2, 65])
def test_repeated_keys_equal_grouped_heads(monkeypatch, dtype, tokens):
    torch.manual_seed(0)
    query, key, value = (torch.randn(tokens, heads, 128, dtype=dtype) for heads in (8, 2, 2))
    grouped = attention.causal_attention(query, key, value)
    monkeypatch.setattr(attention, "GROUPED_DEVICES", ())
    assert torch.equal(attention.causal_attention(query, key, value), grouped)


@pytest.mark.parametrize(
    ("release", "device", "taken"),
    [("2.13.0+cpu", "cpu", True), ("2.5.1", "cuda", True), ("2.4.1", "cuda", False), ("2.13.0", "mps", False)],
)
def test_groups_are_used_where_torch_takes_them(monkeypatch, release, device, taken):
    monkeypatch.setattr(torch, "__version__", release)
    assert attention.takes_groups(torch.device(device)) is taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("lengths", "calls"),
    [([64] * 9, 1), ([2000] * 3, 2), ([5000, 5000], 2), ([12, 12, 40, 12], 3), ([7], 1)],
)
def test_frames_that_share_a_call_equal_frames_alone(monkeypatch, dtype, lengths, calls):
    torch.manual_seed(0)
    query, key, value = torch.randn(sum(lengths), 3, 2, 24, dtype=dtype).unbind(1)
    alone, start = [], 0
    for length in lengths:
        frame = (x[start : start + length].transpose(0, 1)[None] for x in (query, key, value))
        alone.append(F.scaled_dot_product_attention(*frame)[0].transpose(0, 1).reshape(length, -1))
        start += length
    made = []
    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda *qkv: made.append(1) or plain(*qkv))
    assert torch.equal(attention.frame_attention(query, key, value, lengths), torch.cat(alone))
    assert len(made) == calls
