"""Packed checkpoints end to end: each kind opens packed, stays packed, and computes with the matrices it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3te.encoder import build_encoder, load_encoder
from h3te.encoder.packing import unpack
from h3te_tests.foreign_leaf import ForeignLeaf, ForeignOps
from h3te_tests.golden_cases import CASES, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config

CASE = CASES["mixed_in_request_order"]
EMBEDDING = "model.language_model.embed_tokens.weight"
# Largest error to the bf16 file, relative L2, that the format's own rounding explains at these widths.
KINDS = {
    "nvfp4": 0.35, "nvfp4_awq": 0.35, "int8_convrot": 0.03, "int8_row": 0.02, "int8_tensor": 0.03, "fp8": 0.1,
    "fp8_header": 0.1, "fp8_legacy": 0.1, "fp8_e5m2": 0.2, "hf_block_fp8": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def load(tokenizer_folder):
    return lambda path, **options: load_encoder(
        path, **{"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, **options}
    )


@pytest.fixture(scope="module")
def packed(tiny_checkpoint, tmp_path_factory):
    """Each kind is written once."""
    from packed_files import write_packed

    made: dict[str, Path] = {}

    def write(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            target = folder / "text_encoder" if kind == "hf_block_fp8" else folder / f"{kind}.safetensors"
            made[kind] = write_packed(tiny_checkpoint, target, kind, tap=TAP_LAYER)
        return made[kind]

    return write


@pytest.fixture(scope="module")
def unpacked(tokenizer_folder, load, packed):
    """The same weights, unpacked beforehand: a plain float32 encoder."""

    def build(kind: str, twist=lambda name, matrix: matrix):
        source = load(packed(kind)).source
        encoder = build_encoder(tiny_config(), dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
        encoder.load_weights((name, twist(name, matrix(source, name))) for name in source.weights)
        return encoder

    return build


def matrix(source, name: str) -> torch.Tensor:
    stored = source.weights[name]
    parts = stored.fit({part: source.files.read(entry) for part, entry in stored.parts.items()})
    return parts["weight"] if stored.packing is None else unpack(stored.packing, parts, torch.float32)


def hidden(encoder) -> torch.Tensor:
    return encoder.encode(CASE["prompt"], references(CASE)).hidden


@pytest.fixture(scope="module")
def bf16_hidden(load, tiny_checkpoint) -> torch.Tensor:
    return hidden(load(tiny_checkpoint))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_kind_computes_as_its_unpacked_matrices_and_near_the_bf16_file(
    load, packed, unpacked, bf16_hidden, kind
):
    encoder = load(packed(kind))
    got = hidden(encoder)
    assert relative_error(got, bf16_hidden) < KINDS[kind]
    assert not torch.equal(got, bf16_hidden)
    if kind != "nvfp4_awq":  # there the input is scaled instead of the matrix
        assert torch.equal(got, hidden(unpacked(kind)))


def test_awq_scale_multiplies_the_input(load, packed, unpacked):
    encoder = load(packed("nvfp4_awq"))
    source = encoder.source
    scales = {n: s.input_scale for n, s in source.weights.items() if s.input_scale is not None}
    assert {name.rsplit(".", 2)[-2] for name in scales} == {"o_proj", "down_proj"}
    assert len(scales) == 2 * TAP_LAYER

    def scaled(name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight * source.files.read(scales[name]).float() if name in scales else weight

    assert relative_error(hidden(encoder), hidden(unpacked("nvfp4_awq", scaled))) < 1e-5
    assert (
        relative_error(hidden(encoder), hidden(unpacked("nvfp4_awq"))) > 0.05
    )  # without the scales it is another model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_gives_the_same_bits(load, packed, monkeypatch, kind, dtype):
    monkeypatch.setattr("h3te.encoder.checkpoint.reader.STREAMED_FROM", 4096)
    expected = hidden(load(packed(kind), dtype=dtype))
    for reader in ("read", "stream"):
        assert torch.equal(hidden(load(packed(kind), dtype=dtype, reader=reader)), expected), reader


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_leaf_moves_one_blob_and_gives_the_same_bits(load, packed, kind):
    encoder = load(packed(kind), ops=ForeignOps(ForeignLeaf))
    assert torch.equal(hidden(encoder), hidden(load(packed(kind))))
    blobs = [p for name, p in encoder.named_parameters() if name.endswith("down_proj.weight")]
    assert {blob.dtype for blob in blobs} == {torch.uint8}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_packed(load, packed, kind):
    encoder = load(packed(kind))
    told = encoder.weight_bytes
    hidden(encoder)
    assert encoder.weight_bytes == told
    in_files = sum(stored.nbytes for stored in encoder.source.weights.values())
    assert in_files <= encoder.weight_bytes + 2048 * TAP_LAYER  # scales of inputs are no parameters
    assert encoder.weight_bytes <= in_files + 64 * len(encoder.source.weights)  # alignment of the parts
    placeholders = [p for name, p in encoder.named_parameters() if name.endswith("_proj.weight")]
    assert all(p.is_meta and p.dtype == torch.uint8 for p in placeholders)


def test_an_int8_table_is_looked_up_by_rows(load, packed):
    encoder = load(packed("nvfp4_awq"))
    encoder.materialise()
    table = encoder.model.language_model.embed_tokens
    ids = torch.tensor([7, 3, 7, 151643])
    rows = table(ids, torch.device("cpu"), torch.float32)
    assert torch.equal(rows, matrix(encoder.source, EMBEDDING)[ids])


def test_plain_weights_replace_packed_ones(load, packed, bf16_hidden):
    from h3te_tests.tiny_weights import tiny_weights

    encoder = load(packed("nvfp4_awq"))
    hidden(encoder)
    encoder.load_weights(tiny_weights(tiny_config()))
    assert torch.equal(hidden(encoder), bf16_hidden)


def test_a_packed_encoder_moved_away_and_back_is_the_same(load, packed):
    encoder = load(packed("int8_convrot"))
    expected = hidden(encoder)
    encoder.to("meta")
    encoder.offload_to_cpu()
    assert torch.equal(hidden(encoder), expected)
