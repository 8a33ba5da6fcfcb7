"""Element-wise work in blocks of rows gives, to the bit, what the whole tensor gives at once."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import row_blocks as blocks
from h3te.encoder.layers import Layers
from h3te.encoder.leaf import PlainOps
from h3te.encoder.rope import RotaryTable, apply_rotary
from h3te.encoder.row_blocks import row_blocks

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 8), (7, 5120), (300, 64, 128), (3, 1_000_000)])
def test_blocks_cover_every_row_once(shape):
    rows = [i for part in row_blocks(torch.empty(shape)) for i in range(*part.indices(shape[0]))]
    assert rows == list(range(shape[0]))


def test_a_block_is_bounded_and_more_than_one_row_where_rows_are_small():
    parts = list(row_blocks(torch.empty(4096, 5120)))
    assert len(parts) > 1
    assert 1 < parts[0].stop <= blocks.BLOCK_BYTES // (4 * 5120)


def test_no_rows_are_no_blocks():
    assert list(row_blocks(torch.empty(0, 16))) == []


def test_another_device_gets_large_blocks():
    assert list(row_blocks(torch.empty(2344, 5120, device="meta"))) == [slice(0, 3276)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (333, 64), (50, 8, 16)])
def test_rms_norm_in_blocks_equals_the_released_form(dtype, shape, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2048)
    norm = Layers(PlainOps, dtype).rms_norm(shape[-1], 1e-6)
    norm.assign("weight", torch.randn(shape[-1]).to(dtype))
    x = torch.randn(shape).to(dtype)
    h = x.float()
    h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)
    assert torch.equal(norm(x), norm.weight * h)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_rotation_in_blocks_equals_the_released_form(dtype, table_dtype, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2048)
    x = torch.randn(100, 3, 4, 24).to(dtype)[:, 1]  # a slice, as the tower's are
    table = RotaryTable(torch.randn(100, 24).to(table_dtype), torch.randn(100, 24).to(table_dtype))
    first, second = x.to(table_dtype).chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    expected = x.to(table_dtype) * table.cos[:, None] + turned * table.sin[:, None]
    assert torch.equal(apply_rotary(x, table), expected.to(dtype))


def test_layers_and_blocks_leave_their_input_as_it_was(encoder):
    text, vision = encoder.model.language_model, encoder.model.visual
    hidden, x = torch.randn(9, text.config.hidden_size), torch.randn(16, vision.config.hidden_size)
    before = hidden.clone(), x.clone()
    text.layers[0](hidden, _table(9, text.config.head_dim))
    vision.blocks[0](x, _table(16, vision.config.hidden_size // vision.config.num_heads), [16])
    assert torch.equal(hidden, before[0])
    assert torch.equal(x, before[1])


def _table(rows: int, width: int) -> RotaryTable:
    return RotaryTable(torch.randn(rows, width), torch.randn(rows, width))


@pytest.fixture
def encoder(tiny_checkpoint, load_small):
    encoder = load_small(tiny_checkpoint)
    encoder.materialise()
    return encoder
