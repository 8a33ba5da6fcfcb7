"""Attention of rows that follow kept keys: the last rows of attention over everything, without a mask of all pairs."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import attention
from h3te.encoder.past import Past, at_rest
from torch.utils._python_dispatch import TorchDispatchMode

WIDE = 64  # of a head


def heads(rows: int, query: int = 8, key: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    return [torch.randn(rows, count, WIDE).to(dtype) for count in (query, key, key)]


@pytest.mark.parametrize("masked_rows", [1, 7, 256])
@pytest.mark.parametrize(("kept", "own"), [(1, 1), (1, 40), (50, 1), (33, 64), (300, 90)])
@pytest.mark.parametrize(("query_heads", "key_heads"), [(8, 2), (4, 4), (6, 1)])
def test_rows_after_kept_keys_are_as_in_the_whole(monkeypatch, masked_rows, kept, own, query_heads, key_heads):
    monkeypatch.setattr(attention, "MASKED_ROWS", masked_rows)
    query, key, value = heads(kept + own, query_heads, key_heads)
    whole = attention.causal_attention(query, key, value)
    torch.testing.assert_close(attention.causal_attention(query[kept:], key, value), whole[kept:], rtol=0, atol=2e-6)


def test_bfloat16_is_as_close_to_float32_as_the_whole_is():
    query, key, value = heads(700)
    want = attention.causal_attention(query, key, value)[400:]
    rounded = [x.bfloat16() for x in (query, key, value)]
    whole = attention.causal_attention(*rounded)[400:].float()
    part = attention.causal_attention(rounded[0][400:], *rounded[1:])
    assert part.dtype == torch.bfloat16
    assert (part.float() - want).norm() <= 1.2 * (whole - want).norm()


class Largest(TorchDispatchMode):
    """The most bytes of one mask, and the most rows of a call."""

    def __init__(self):
        super().__init__()
        self.masks, self.rows = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.bool:
            self.masks = max(self.masks, out.nbytes)
        if "scaled_dot_product" in str(func):
            self.rows = max(self.rows, args[0].shape[2])
        return out


@pytest.mark.parametrize(("kept", "own"), [(9000, 600), (100, 600)])
def test_masks_are_bounded_however_many_keys_are_kept(monkeypatch, kept, own):
    monkeypatch.setattr(attention, "MASK_BYTES", 1 << 20)
    query, key, value = heads(kept + own)
    with Largest() as largest:
        attention.causal_attention(query[kept:], key, value)
    assert 0 < largest.masks <= 1 << 20
    assert 4 <= largest.rows <= 4 * attention.MASKED_ROWS


class Given:
    def __init__(self, layers):
        self.layers = layers

    def pair(self, layer):
        return self.layers[layer]


def test_past_puts_everything_before_in_front_and_keeps_the_first_rows():
    layers = [heads(n)[1:] for n in (10, 11)]
    before, own = Given(layers), [heads(6)[1:], heads(7)[1:]]
    first = Past([(before, 9)], keep_rows=4, followed=True)
    second = Past([(before, 9), (first, 3)])
    for i, (key, value) in enumerate(own):
        keys, values = first.followed_by(key, value)
        assert torch.equal(keys, torch.cat([layers[i][0][:9], key]))
        assert torch.equal(values, torch.cat([layers[i][1][:9], value]))
        keys, _ = second.followed_by(key, value)
        assert torch.equal(keys, torch.cat([layers[i][0][:9], key[:3], key]))
        assert torch.equal(first.kept[i][0], key[:4]) and torch.equal(first.kept[i][1], value[:4])
    assert second.kept == [] and len(first.kept) == 2


def test_kept_rows_hold_no_larger_memory_alive_and_whole_ones_are_not_copied():
    x = torch.randn(8, 3, 4)
    assert at_rest(x).data_ptr() == x.data_ptr()
    part = at_rest(x, 5)
    assert torch.equal(part, x[:5]) and part.untyped_storage().nbytes() == part.nbytes
