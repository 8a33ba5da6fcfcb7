"""Rows and columns of a weight in any stored format: exactly those of the whole matrix, from their own bytes alone."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder.packing import cut, unpack
from h3te.encoder.packing.cutting import COLUMNS, ROWS, Trimmed
from h3te.encoder.packing.ggml import Ggml
from h3te.encoder.packing.stacked import Stacked
from h3te_tests.gguf_files import random_blocks
from h3te_tests.stored_parts import FORMATS, GGUF, matrix_of, stored_as
from h3te_tests.test_packing import random_weight

SIZES = (2, 4, 8)
SHAPES = [(512, 2048), (256, 512), (160, 768)]  # blocks end at each cut, at some, at none; rows that fill no tile
ALONE = ("bf16", "fp16", "fp32", "int8_row", "int8_tensor", "fp8", "fp8_e5m2", "fp8_row")  # each value by itself


def spans(shape: tuple[int, int], axis: int, size: int) -> list[tuple[int, int]]:
    step = shape[axis] // size
    return [(i * step, (i + 1) * step) for i in range(size)]


def part_of(whole: torch.Tensor, axis: int, start: int, stop: int) -> torch.Tensor:
    return whole.narrow(axis, start, stop - start)


@pytest.mark.parametrize("axis", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_each_rank_has_exactly_its_part_of_the_matrix(tmp_path, format, shape, axis):
    stored, files, whole = stored_as(tmp_path / "weight", format, random_weight(shape))
    for size in SIZES:
        for start, stop in spans(shape, axis, size):
            own = stored.cut(axis, start, stop)
            for mapped in (False, True):
                assert torch.equal(matrix_of(own, files, mapped), part_of(whole, axis, start, stop)), (size, start)


@pytest.mark.parametrize("axis", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("format", FORMATS)
def test_any_part_of_a_matrix_is_exact(tmp_path, format, axis):
    shape = (300, 768)
    stored, files, whole = stored_as(tmp_path / "weight", format, random_weight(shape))
    for start, stop in ((0, shape[axis]), (0, 1), (1, 2), (17, 130), (128, 256), (shape[axis] - 1, shape[axis])):
        own = stored.cut(axis, start, stop)
        assert torch.equal(matrix_of(own, files), part_of(whole, axis, start, stop)), (start, stop)


@pytest.mark.parametrize("axis", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("format", FORMATS)
def test_only_the_bytes_of_the_part_are_read(tmp_path, format, axis):
    """(512, 2048) at 2 and 4 ranks: blocks of every format end at the cuts."""
    stored, files, _ = stored_as(tmp_path / "weight", format, random_weight(SHAPES[0]))
    shared = [name for name, entry in stored.parts.items() if stored.cut(axis, 0, 512 >> 1).parts[name] is entry]
    for size in (2, 4):
        before = files.bytes_read
        each = [stored.cut(axis, *span) for span in spans(SHAPES[0], axis, size)]
        for own in each:
            matrix_of(own, files)
        assert files.bytes_read - before == sum(own.nbytes for own in each)
        extra = sum(stored.parts[name].nbytes for name in shared) * (size - 1)
        assert files.bytes_read - before == stored.nbytes + extra
    assert "weight" not in shared


@pytest.mark.parametrize("format", ALONE)
def test_values_that_stand_alone_are_cut_anywhere(tmp_path, format):
    stored, _, _ = stored_as(tmp_path / "weight", format, random_weight((160, 96)))
    for axis, size in ((ROWS, 160), (COLUMNS, 96)):
        for span in spans((160, 96), axis, 4):
            own = stored.cut(axis, *span)
            assert not isinstance(own.packing, Trimmed)
            assert own.parts["weight"].nbytes == stored.parts["weight"].nbytes * (span[1] - span[0]) // size


@pytest.mark.parametrize(
    "format, axis, grain",
    [
        ("nvfp4", ROWS, 128), ("nvfp4", COLUMNS, 64), ("int8_convrot", ROWS, 1), ("int8_convrot", COLUMNS, 256),
        ("hf_block_fp8", ROWS, 128), ("hf_block_fp8", COLUMNS, 128), ("Q8_0", ROWS, 1), ("Q8_0", COLUMNS, 32),
        ("Q4_K", ROWS, 1), ("Q4_K", COLUMNS, 256),
    ],
)  # fmt: skip
def test_a_cut_inside_a_block_keeps_the_whole_block(tmp_path, format, axis, grain):
    shape = (512, 1024)
    stored, _, _ = stored_as(tmp_path / "weight", format, random_weight(shape))
    assert not isinstance(stored.cut(axis, grain, 2 * grain).packing, Trimmed)
    if grain > 1:
        own = stored.cut(axis, grain + 1, 2 * grain + 1).packing
        assert (own.skip, own.inner.shape[axis], own.shape[axis]) == (1, 2 * grain, grain)
        assert own.name == stored.packing.name


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("axis", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_blocks_that_run_over_the_ends_of_rows_are_kept_whole_and_trimmed(axis, type):
    shape = (64, 144)
    packing = Ggml(shape, type)
    assert packing.row_step > 1
    blocks = torch.from_numpy(random_blocks(type, 64 * 144 // (256 if type == "Q4_K" else 32)).reshape(-1))
    whole = unpack(packing, {"weight": blocks}, torch.float32)
    for size in SIZES:
        for start, stop in spans(shape, axis, size):
            own, runs = cut(packing, axis, start, stop)
            assert runs["weight"].width == blocks.nbytes
            assert torch.equal(unpack(own, {"weight": blocks}, torch.float32), part_of(whole, axis, start, stop))


def test_a_packing_without_units_is_kept_whole_and_trimmed():
    packing = Stacked((8, 3, 2, 4, 4))
    generator = torch.Generator().manual_seed(0)
    parts = {n: torch.randn(p.shape, generator=generator).half() for n, p in packing.parts.items()}
    own, runs = cut(packing, ROWS, 2, 4)
    assert {name: run.width for name, run in runs.items()} == {name: part.nbytes for name, part in parts.items()}
    assert torch.equal(unpack(own, parts, torch.float32), unpack(packing, parts, torch.float32)[2:4])


@pytest.mark.parametrize("format", ["int8_convrot", *GGUF])
def test_a_trimmed_part_moves_as_one_blob(tmp_path, format):
    from h3te.encoder.packing import join, split

    stored, files, whole = stored_as(tmp_path / "weight", format, random_weight((256, 512)))
    own = stored.cut(COLUMNS, 100, 300)
    parts = own.fit({name: files.read(entry) for name, entry in own.parts.items()})
    blob = join(own.packing, parts, torch.device("cpu"))
    assert blob.shape == (own.packing.nbytes,)
    assert torch.equal(unpack(own.packing, split(own.packing, blob), torch.float32), whole[:, 100:300])
