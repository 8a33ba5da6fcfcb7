"""Every packed format over 2 and 4 ranks: hidden states, the three readers, and the bytes that each rank reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from gguf_plan import Types
from h3te.encoder import load_encoder
from h3te.encoder.parallel.cut_table import rank_bytes
from h3te_tests.gguf_files import write_family
from h3te_tests.golden_cases import relative_error
from h3te_tests.parallel.agreement import BFLOAT16, FLOAT32, SIZES, agree, largest_error
from h3te_tests.parallel.requests import REQUESTS
from h3te_tests.tiny_weights import TAP_LAYER, divisible_config, write_tiny_checkpoint
from packed_kinds import KINDS

PACKED = tuple(kind for kind, packed in KINDS.items() if packed.served and kind != "bf16")
GGUF = {
    "Q8_0": Types("Q8_0", embedding="Q8_0", vision="Q8_0"), "Q4_K": Types("Q4_K", embedding="Q4_K", vision="Q8_0"),
    "Q6_K": Types("Q6_K", embedding="Q6_K", vision="Q6_K"), "fp16": Types("F16", embedding="F16", vision="F16"),
}  # fmt: skip
FORMATS = ("bf16", *PACKED, *GGUF)
WIDENED = {"int8_convrot": (4,), "Q4_K": (4,), "Q6_K": (4,)}  # blocks of 256 in the 128 columns of a rank's down
REQUEST = "pictures"


@pytest.fixture(scope="module")
def written(shared_checkpoint, tmp_path_factory):
    """Each format is written once; GGUF in a width that its blocks divide."""
    from packed_files import write_packed

    made: dict[str, Path] = {"bf16": shared_checkpoint}

    def write(format: str) -> Path:
        if format not in made:
            folder = tmp_path_factory.mktemp(format)
            if format in GGUF:
                made[format] = write_family(folder / "qwen3vl.gguf", "C", divisible_config(256), GGUF[format])
            else:
                target = folder / ("text_encoder" if KINDS[format].whole else f"{format}.safetensors")
                made[format] = write_packed(shared_checkpoint, target, format, tap=TAP_LAYER)
        return made[format]

    return write


@pytest.fixture(scope="module")
def one(written, tokenizer_folder):
    """The encoder of one process."""
    return lambda format, dtype=torch.float32: load_encoder(
        written(format), dtype=dtype, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder
    )


@pytest.fixture(scope="module")
def expected(one):
    made: dict[tuple, torch.Tensor] = {}

    def hidden(format: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if (format, dtype) not in made:
            made[format, dtype] = one(format, dtype).encode(*REQUESTS[REQUEST]).hidden[0]
        return made[format, dtype]

    return hidden


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_and_reader_gives_what_one_process_gives(pool, written, expected, format, size):
    given = {"requests": [REQUEST], "path": str(written(format))}
    found = {
        reader: agree(pool.run("encode", size, reader=reader, **given), size) for reader in ("mmap", "read", "stream")
    }
    error = largest_error(found["mmap"][REQUEST], expected(format))
    print(f"{format} {size} ranks: float32 {error:.1e}")
    assert error <= FLOAT32
    assert all(torch.equal(tensors[REQUEST], found["mmap"][REQUEST]) for tensors in found.values())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", FORMATS)
def test_bfloat16_is_no_further_from_float32_than_one_process(pool, written, expected, format, size):
    given = {"requests": [REQUEST], "path": str(written(format)), "dtype": "bfloat16"}
    got = agree(pool.run("encode", size, **given), size)[REQUEST]
    ours, theirs = (relative_error(x, expected(format)) for x in (got, expected(format, torch.bfloat16)))
    print(f"{format} {size} ranks: bfloat16 {ours:.2e}, one process {theirs:.2e}")
    assert ours <= BFLOAT16 * theirs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", FORMATS)
def test_each_rank_reads_its_own_bytes_and_no_more(pool, written, one, format, size):
    encoder = one(format)
    weights, shapes = encoder.source.weights, encoder.slots.shapes
    planned = rank_bytes(weights, shapes, size)
    counts = pool.run("read_bytes", size, path=str(written(format)))
    for rank, tensors in counts.items():
        read, by_system, _ = tensors["counts"].tolist() if rank < size else (0, 0, 0)
        assert read == (planned[rank] if rank < size else 0)
        if sys.platform == "linux" and rank < size:
            assert 0 <= by_system - read < 4096  # the counter itself is a file
    whole = sum(stored.nbytes for stored in weights.values())
    replicated = sum(planned) - whole
    print(f"{format} {size} ranks: {whole:,} bytes, each {planned}, whole or widened {replicated:,}")
    shared = sum(w.nbytes for name, w in weights.items() if encoder_keeps_whole(name))
    scales = sum(small_parts(w) for name, w in weights.items() if not encoder_keeps_whole(name))
    widened = widened_bytes(weights, size) if size in WIDENED.get(format, ()) else 0
    assert (size - 1) * shared <= replicated <= (size - 1) * (shared + scales) + widened
    assert bool(widened) == (size in WIDENED.get(format, ()))


def encoder_keeps_whole(name: str) -> bool:
    from h3te.encoder.parallel.cuts import axis_of

    return axis_of(name) is None


def small_parts(stored) -> int:
    """Scales, which columns share."""
    return sum(entry.nbytes for part, entry in stored.parts.items() if part != "weight")


def widened_bytes(weights, size: int) -> int:
    """down_proj at 4 ranks: each reads a block of 256 for its 128 columns, twice its share."""
    return sum(w.parts["weight"].nbytes for name, w in weights.items() if name.endswith("down_proj.weight"))


def test_a_width_whose_rows_fill_no_tile_is_widened(pool, tmp_path, tokenizer_folder):
    """nvfp4 and HF blocks: 320 values in the MLP leave 80 to a rank, rows and columns inside tiles of 128 and 64."""
    from packed_files import write_packed

    source = write_tiny_checkpoint(tmp_path / "text_encoder", divisible_config(intermediate_size=320))
    for kind in ("nvfp4", "hf_block_fp8", "int8_convrot"):
        target = tmp_path / (kind if KINDS[kind].whole else f"{kind}.safetensors")
        path = write_packed(source, target, kind, tap=TAP_LAYER)
        alone = load_encoder(path, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
        got = agree(pool.run("encode", 4, requests=[REQUEST], path=str(path)), 4)[REQUEST]
        assert largest_error(got, alone.encode(*REQUESTS[REQUEST]).hidden[0]) <= FLOAT32, kind
