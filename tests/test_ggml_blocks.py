"""ggml's blocks: every type against the `gguf` package, bit for bit; rows, lookups, flattened tensors, slices."""

from __future__ import annotations

import logging

import gguf
import numpy as np
import pytest
import torch
from ggml_pack import packed
from h3te.encoder.packing import join, split, unpack
from h3te.encoder.packing.ggml import TORCH_TYPES, Ggml, block_size, row_bytes
from h3te.encoder.packing.stacked import Stacked
from h3te_tests.gguf_files import random_blocks

THROUGH_NUMPY = ("IQ2_XXS", "IQ3_S", "TQ2_0", "MXFP4")


def random_weight(kind: str, rows: int, width: int) -> tuple[Ggml, dict[str, torch.Tensor], torch.Tensor]:
    """(packing, parts, the float32 matrix as the package unpacks it)."""
    values, _ = block_size(kind)
    blocks = random_blocks(kind, rows * width // values)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    packing = Ggml((rows, width), kind)
    parts = {"weight": torch.from_numpy(blocks).reshape(packing.parts["weight"].shape)}
    return packing, parts, torch.from_numpy(expected).reshape(rows, width)


@pytest.mark.parametrize("kind", [*TORCH_TYPES, *THROUGH_NUMPY])
def test_unpacked_matrix_equals_the_package_bit_for_bit(kind):
    packing, parts, expected = random_weight(kind, 24, 1024)
    assert expected.isfinite().all() and expected.abs().max() > 0
    assert torch.equal(unpack(packing, parts, torch.float32), expected)
    assert torch.equal(unpack(packing, parts, torch.bfloat16), expected.bfloat16())


@pytest.mark.parametrize("kind", [*TORCH_TYPES, "IQ3_S"])
def test_rows_and_lookups_equal_those_of_the_matrix(kind):
    packing, parts, expected = random_weight(kind, 24, 512)
    assert torch.equal(packing.rows(parts, 5, 17), expected[5:17])
    ids = torch.tensor([23, 0, 7, 7])
    assert packing.rows_apart
    taken = {name: part[ids] for name, part in parts.items()}
    assert torch.equal(unpack(packing.of_rows(len(ids)), taken, torch.float32), expected[ids])


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_several_chunks_are_unpacked_as_one(kind, monkeypatch):
    monkeypatch.setattr("h3te.encoder.packing.packing.CHUNK_ELEMENTS", 2000)
    packing, parts, expected = random_weight(kind, 25, 768)
    assert torch.equal(unpack(packing, parts, torch.float32), expected)


@pytest.mark.parametrize("kind", [*TORCH_TYPES, "IQ3_S"])
def test_meta_tensors_unpack_to_meta_tensors(kind):
    packing = Ggml((8, 512), kind)
    parts = {name: torch.empty(part.shape, dtype=part.dtype, device="meta") for name, part in packing.parts.items()}
    matrix = unpack(packing, parts, torch.bfloat16)
    assert matrix.is_meta and matrix.shape == (8, 512) and matrix.dtype == torch.bfloat16


@pytest.mark.parametrize(("kind", "shape"), [("Q4_K", (32, 72)), ("Q6_K", (1152, 144)), ("Q5_K", (8, 3, 2, 16, 16)),
                                             ("Q8_0", (16, 4306)), ("Q6_K", (16, 4304))])  # fmt: skip
def test_tensor_packed_over_all_its_values_unpacks_row_by_row(kind, shape, monkeypatch):
    monkeypatch.setattr("h3te.encoder.packing.packing.CHUNK_ELEMENTS", 4096)
    packing, values = Ggml(shape, kind), block_size(kind)[0]
    blocks = random_blocks(kind, int(np.prod(shape)) // values)
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])).reshape(shape)
    parts = {"weight": torch.from_numpy(blocks).reshape(packing.parts["weight"].shape)}
    assert torch.equal(unpack(packing, parts, torch.float32), expected)
    begin = packing.row_step
    assert torch.equal(packing.rows(parts, begin, shape[0]), expected[begin:].flatten(1))


def test_rows_of_a_tensor_packed_over_all_its_values_cannot_be_taken_out():
    packing = Ggml((32, 72), "Q4_K")
    assert packing.row_step > 1 and not packing.rows_apart


def test_blob_holds_the_blocks_and_nothing_else():
    packing, parts, expected = random_weight("Q6_K", 24, 512)
    blob = join(packing, parts, torch.device("cpu"))
    assert blob.shape == (packing.nbytes,) and packing.nbytes - 24 * row_bytes("Q6_K", 512) < 16
    assert torch.equal(unpack(packing, split(packing, blob), torch.float32), expected)


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_block_size_is_the_package_s(kind):
    assert block_size(kind) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


def test_values_that_are_no_whole_blocks_are_refused():
    with pytest.raises(ValueError, match=r"expected a number of values that Q4_K can hold .* got the shape \[3, 100\]"):
        Ggml((3, 100), "Q4_K")
    with pytest.raises(ValueError, match="expected rows of whole Q4_K blocks of 256 values, got 100"):
        row_bytes("Q4_K", 100)


@pytest.mark.parametrize("kind", ["Q8_K", "I8", "Q9_Z"])
def test_type_that_nothing_unpacks_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"expected weights in Q8_0, .*, got {kind}. .*pip install -U gguf"):
        Ggml((4, 256), kind)


def test_type_that_numpy_unpacks_says_so_once(caplog):
    block_size.__globals__["_numpy_block_size"].cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            packing, parts, _ = random_weight("IQ3_S", 4, 256)
            unpack(packing, parts, torch.float32)
    assert [r.getMessage() for r in caplog.records] == [
        "GGUF: IQ3_S has no torch kernel here: it is unpacked by numpy on the CPU, which is slow."
    ]


@pytest.mark.parametrize(("kind", "most"), [("Q4_K", 0.09), ("Q6_K", 0.022), ("Q8_0", 0.006)])
def test_packed_weights_stay_near_what_was_packed(kind, most):
    """The scripts' own packer for the K types, measured through the package's unpacking."""
    weight = np.random.default_rng(0).normal(0, 0.02, (64, 512)).astype(np.float32)
    weight[3] = 0
    found = gguf.quants.dequantize(packed(weight, kind), gguf.GGMLQuantizationType[kind])
    assert np.sqrt(((found - weight) ** 2).mean() / (weight**2).mean()) < most


def test_slices_along_time_are_one_tensor():
    whole = torch.randn(8, 3, 2, 4, 4).half()
    packing = Stacked((8, 3, 2, 4, 4), torch.float16)
    parts = {"weight": whole[:, :, 0].contiguous(), "weight.1": whole[:, :, 1].contiguous()}
    assert {name: part.shape for name, part in packing.parts.items()} == {n: t.shape for n, t in parts.items()}
    assert torch.equal(unpack(packing, parts, torch.float32), whole.float())
    blob = join(packing, parts, torch.device("cpu"))
    assert torch.equal(unpack(packing, split(packing, blob), torch.float16), whole)
