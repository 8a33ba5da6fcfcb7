"""Packed weights unpack to the samples' numbers bit for bit, at any shape, from any run of rows, on any device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3te.encoder.packing import Packing, join, split, unpack
from h3te.encoder.packing.fp8 import BlockFp8, Fp8
from h3te.encoder.packing.int8 import Int8, hadamard
from h3te.encoder.packing.nvfp4 import Nvfp4
from quantise import convrot_group, quantise
from safetensors.torch import load_file

SAMPLES = Path(__file__).resolve().parent / "goldens" / "quant"
SHAPE = (128, 512)
LEGACY = Fp8(SHAPE, scale_shape=(1,), scale_name="scale_weight")
EXACT = {  # sample file: (packing, name of the expected values)
    "nvfp4": (Nvfp4(SHAPE), "nvfp4"),
    "fp8_scaled_comfy_quant": (Fp8(SHAPE), "fp8_scaled"),
    "fp8_scaled_header_meta": (Fp8(SHAPE), "fp8_scaled"),
    "fp8_scaled_old": (LEGACY, "fp8_scaled"),
    "hf_block_fp8": (BlockFp8(SHAPE), "hf_block_fp8"),
    "int8_tensorwise_rowwise": (Int8(SHAPE), "int8_tensorwise_rowwise"),
    "int8_tensorwise_scalar": (Int8(SHAPE, per_row=False), "int8_tensorwise_scalar"),
}
# tiny models' shapes: rows that fill no tile of 128, columns whose blocks fill no tile of 4, both, and a whole one
SHAPES = [(64, 160), (160, 64), (300, 208), (5, 16), (256, 512)]
ROUNDING = {
    "nvfp4": 0.12, "int8_convrot": 0.012, "int8_row": 0.012, "int8_tensor": 0.015, "fp8": 0.03, "fp8_e5m2": 0.06,
    "fp8_row": 0.03, "hf_block_fp8": 0.03,
}  # fmt: skip


def sample(name: str) -> dict[str, torch.Tensor]:
    return {key.rpartition(".")[2]: tensor for key, tensor in load_file(SAMPLES / f"{name}.safetensors").items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(SAMPLES / "expected.safetensors")


@pytest.fixture(scope="module")
def original() -> torch.Tensor:
    return sample("bf16")["weight"].float()


def packing_of(format: str, shape: tuple[int, int]) -> Packing:
    rows = shape[0]
    return {
        "nvfp4": lambda: Nvfp4(shape),
        "int8_convrot": lambda: Int8(shape, group=convrot_group(shape[1])),
        "int8_row": lambda: Int8(shape),
        "int8_tensor": lambda: Int8(shape, per_row=False),
        "fp8": lambda: Fp8(shape),
        "fp8_e5m2": lambda: Fp8(shape, torch.float8_e5m2),
        "fp8_row": lambda: Fp8(shape, scale_shape=(rows, 1)),
        "hf_block_fp8": lambda: BlockFp8(shape),
    }[format]()


def random_weight(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.03


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", EXACT)
def test_sample_unpacks_to_its_expected_values_bit_for_bit(name, expected):
    packing, values = EXACT[name]
    assert torch.equal(unpack(packing, sample(name), torch.float32), expected[values])


@pytest.mark.parametrize("name", EXACT)
def test_bfloat16_is_the_float32_matrix_rounded_once(name, expected):
    packing, values = EXACT[name]
    assert torch.equal(unpack(packing, sample(name), torch.bfloat16), expected[values].bfloat16())


@pytest.mark.parametrize("name", EXACT)
def test_parts_in_one_blob_unpack_to_the_same_matrix(name, expected):
    packing, values = EXACT[name]
    blob = join(packing, sample(name), torch.device("cpu"))
    assert blob.shape == (packing.nbytes,)
    assert torch.equal(unpack(packing, split(packing, blob), torch.float32), expected[values])


def test_convrot_sample_is_the_exact_matrix_rounded_once(expected, original):
    parts = sample("int8_convrot")
    ours = unpack(Int8(SHAPE, group=256), parts, torch.float32)
    four = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=torch.float64)
    turn = torch.kron(torch.kron(torch.kron(four, four), four), four) / 16
    rotated = parts["weight"].double() * parts["weight_scale"].double()
    exact = (rotated.view(-1, 256) @ turn.T).view(SHAPE)
    assert torch.equal(ours, exact.float())
    assert error(ours, expected["int8_convrot"]) < 1e-6  # theirs sums in float32, in an order of the machine's
    assert error(ours, original) < 0.01 < 1 < error(rotated.float(), original)


def test_awq_sample_serves_with_its_input_scale_only(original):
    parts = sample("nvfp4_awq")
    inputs = torch.randn(64, SHAPE[1], generator=torch.Generator().manual_seed(0))
    weight = unpack(Nvfp4(SHAPE), parts, torch.float32)
    right = (inputs * parts["pre_quant_scale"].float()) @ weight.T
    assert error(right, inputs @ original.T) < 0.1 < 0.15 < error(inputs @ weight.T, inputs @ original.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", ROUNDING)
def test_quantised_weight_comes_back_within_rounding(format, shape):
    weight, packing = random_weight(shape), packing_of(format, shape)
    parts = quantise(format, weight)
    for name, part in packing.parts.items():
        assert (parts[name].dtype, tuple(parts[name].shape)) == (part.dtype, part.shape), name
    assert error(unpack(packing, parts, torch.float32), weight) < ROUNDING[format]


@pytest.mark.parametrize("shape", SHAPES)
def test_nvfp4_equals_one_element_at_a_time(shape):
    """Every nibble and every scale found by its own address, so that a wrong order anywhere shows."""
    (count, width), generator = shape, torch.Generator().manual_seed(2)
    stored = Nvfp4(shape).parts["weight_scale"].shape
    parts = {
        "weight": torch.randint(0, 256, (count, width // 2), generator=generator, dtype=torch.uint8),
        "weight_scale": (torch.rand(stored, generator=generator) * 448).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(2.3832774e-04),
    }
    row, column = torch.arange(count)[:, None], torch.arange(width)[None, :]
    byte = parts["weight"].long()[:, column[0] // 2]
    nibble = torch.where(column % 2 == 0, byte // 16, byte % 16)
    half_units = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12])[nibble % 8] * torch.where(nibble < 8, 1, -1)
    block = column // 16
    tile = (row // 128) * (stored[1] // 4) + block // 4
    address = tile * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + block % 4
    scale = parts["weight_scale"].float().view(-1)[address]
    assert torch.equal(unpack(Nvfp4(shape), parts, torch.float32), half_units / 2 * (scale * parts["weight_scale_2"]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_block_fp8_scales_its_edge_blocks(shape, dtype):
    weight = random_weight(shape)
    parts = quantise("hf_block_fp8", weight)
    parts["weight_scale_inv"] = parts["weight_scale_inv"].to(dtype)
    spread = parts["weight_scale_inv"].float().repeat_interleave(128, 0).repeat_interleave(128, 1)
    plain = parts["weight"].float() * spread[: shape[0], : shape[1]]
    assert torch.equal(unpack(BlockFp8(shape, scale_dtype=dtype), parts, torch.float32), plain)


@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scale_shape", [(), (1,), (256, 1)])
def test_fp8_of_every_code_and_scale_equals_the_plain_product(code, scale_shape):
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 2).view(code)
    scale = torch.rand(scale_shape, generator=torch.Generator().manual_seed(3))
    packing = Fp8((256, 512), code, scale_shape)
    ours = unpack(packing, {"weight": codes, "weight_scale": scale}, torch.float32)
    assert torch.equal(ours.view(torch.int32), (codes.float() * scale).view(torch.int32))  # the NaN codes too


@pytest.mark.parametrize("format", ROUNDING)
def test_any_run_of_rows_equals_those_rows_of_the_whole(format):
    shape = (300, 208)
    packing, parts = packing_of(format, shape), quantise(format, random_weight(shape))
    whole = unpack(packing, parts, torch.float32)
    for start, stop in ((0, 300), (0, 1), (1, 32), (31, 129), (127, 128), (130, 300), (299, 300)):
        assert torch.equal(packing.rows(parts, start, stop), whole[start:stop]), (start, stop)


@pytest.mark.parametrize("format", ROUNDING)
def test_rows_of_a_table_are_apart_but_where_they_share_scales(format):
    assert packing_of(format, (300, 208)).rows_apart == (format not in ("nvfp4", "hf_block_fp8"))


def test_nvfp4_scales_at_an_odd_offset_of_a_mapped_file_unpack(expected):
    parts = sample("nvfp4")
    held = torch.cat([torch.zeros(1, dtype=torch.uint8), parts["weight_scale"].view(torch.uint8).view(-1)])
    parts["weight_scale"] = held[1:].view(torch.float8_e4m3fn).view(parts["weight_scale"].shape)
    assert torch.equal(unpack(Nvfp4(SHAPE), parts, torch.float32), expected["nvfp4"])


def test_nvfp4_scales_may_be_stored_flat(expected):
    parts = sample("nvfp4")
    parts["weight_scale"] = parts["weight_scale"].view(-1)
    assert torch.equal(unpack(Nvfp4(SHAPE), parts, torch.float32), expected["nvfp4"])


@pytest.mark.parametrize("format", ROUNDING)
def test_meta_parts_unpack_to_a_meta_matrix(format):
    shape = (300, 208)
    parts = {name: tensor.to("meta") for name, tensor in quantise(format, random_weight(shape)).items()}
    matrix = unpack(packing_of(format, shape), parts, torch.bfloat16)
    assert (matrix.device.type, matrix.dtype, tuple(matrix.shape)) == ("meta", torch.bfloat16, shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("format", ROUNDING)
def test_cuda_unpacks_to_the_same_bits(format):
    shape = (300, 208)
    packing, parts = packing_of(format, shape), quantise(format, random_weight(shape))
    there = {name: parts[name].cuda() for name in packing.parts}
    assert torch.equal(unpack(packing, there, torch.float32).cpu(), unpack(packing, parts, torch.float32))


def test_nvfp4_equals_the_host_s_own_kernel():
    kitchen = pytest.importorskip("comfy_kitchen")
    shape = (256, 1024)
    parts = quantise("nvfp4", random_weight(shape))
    theirs = kitchen.dequantize_nvfp4(
        parts["weight"], parts["weight_scale_2"], parts["weight_scale"], output_type=torch.float32
    )
    assert torch.equal(unpack(Nvfp4(shape), parts, torch.float32), theirs)


def test_all_zero_weight_stays_zero():
    for format in ROUNDING:
        parts = quantise(format, torch.zeros(64, 64))
        assert not unpack(packing_of(format, (64, 64)), parts, torch.float32).any(), format


def test_nvfp4_of_broken_blocks_is_refused():
    with pytest.raises(ValueError, match=r"nvfp4: expected a matrix whose columns are a multiple of 16, got \[8, 24\]"):
        Nvfp4((8, 24))


def test_fp8_scale_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"fp8: expected one scale, or one for each of 8 rows, got \[4\]"):
        Fp8((8, 16), scale_shape=(4,))


def test_convrot_group_that_is_no_power_of_4_is_refused():
    with pytest.raises(ValueError, match=r"convrot: expected groups of 4, 16, 64, 256 or 1024 columns, got 128"):
        hadamard(128, torch.device("cpu"))


def test_quantise_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"quantise: expected one of nvfp4, .*, got 'int3'"):
        quantise("int3", torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"quantise: expected columns in whole blocks of 16 for nvfp4, got 24"):
        quantise("nvfp4", torch.zeros(4, 24))
