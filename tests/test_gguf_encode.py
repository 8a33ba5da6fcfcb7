"""GGUF checkpoints end to end: each family computes with the matrices that the `gguf` package unpacks."""

from __future__ import annotations

from pathlib import Path

import gguf_files
import pytest
import torch
from gguf_plan import Types
from h3te.encoder import build_encoder, load_encoder
from h3te_tests.gguf_files import NAMES, TINY, WIDE, expected_weights, vision_path, write_family
from h3te_tests.golden_cases import CASES, references
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config

CASE = CASES["mixed_in_request_order"]
MIXED = Types(linear="Q4_K", down="Q6_K", embedding="Q5_0", vision="IQ4_NL")


def wide_config() -> dict:
    """Rows of 256 and 512: K types fit."""
    config = tiny_config(hidden_size=256, intermediate_size=512)
    config["vision_config"]["out_hidden_size"] = 256
    return config


SIZES = {"Q8_0": (tiny_config(), TINY), "K": (wide_config(), WIDE)}


@pytest.fixture(scope="module")
def load(tokenizer_folder):
    return lambda path, **options: load_encoder(
        path, **{"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, **options}
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Each file is written once."""
    made: dict[tuple[str, str], Path] = {}

    def write(family: str, size: str) -> Path:
        if (family, size) not in made:
            path = tmp_path_factory.mktemp("gguf") / f"qwen3vl-{family}.gguf"
            made[family, size] = write_family(path, family, *SIZES[size])
        return made[family, size]

    return write


@pytest.fixture(scope="module")
def expected(tokenizer_folder):
    """Hidden states of a float32 encoder whose weights the `gguf` package unpacked."""

    def encode(family: str, size: str) -> torch.Tensor:
        config, types = SIZES[size]
        encoder = build_encoder(config, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
        encoder.load_weights(expected_weights(config, family, types).items())
        return hidden(encoder)

    return encode


def hidden(encoder) -> torch.Tensor:
    return encoder.encode(CASE["prompt"], references(CASE)).hidden


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", NAMES)
def test_family_computes_with_the_matrices_that_the_package_unpacks(family, size, load, written, expected):
    encoder = load(written(family, size))
    assert torch.equal(hidden(encoder), expected(family, size))


@pytest.mark.parametrize("reader", ["read", "stream"])
@pytest.mark.parametrize("family", ["B", "C"])
def test_each_reader_gives_the_same(family, reader, load, written):
    path = written(family, "K")
    assert torch.equal(hidden(load(path, reader=reader)), hidden(load(path)))


def test_weights_stay_packed_in_memory(load, written):
    encoder = load(written("A", "K"))
    encoder.load_to_device()
    entries = encoder.source.catalog.entries
    layer = "model.language_model.layers.0.mlp.gate_proj.weight"
    assert encoder.slots.get(layer).dtype == torch.uint8
    assert encoder.slots.get(layer).nbytes - entries[layer].nbytes < 16


def test_vision_file_elsewhere_is_named(load, written, expected, tmp_path):
    path = written("C", "Q8_0")
    alone, named = tmp_path / "qwen3vl.gguf", tmp_path / "vision" / "v.gguf"
    named.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    named.write_bytes(vision_path(path).read_bytes())
    assert torch.equal(hidden(load(alone, vision=named)), expected("C", "Q8_0"))


def test_model_without_its_vision_file_serves_text_and_refuses_pictures(load, written, tmp_path):
    path = tmp_path / "qwen3vl-alone.gguf"
    path.write_bytes(written("C", "Q8_0").read_bytes())
    encoder, whole = load(path), load(written("C", "Q8_0"))
    assert torch.equal(encoder.encode("a red fox").hidden, whole.encode("a red fox").hidden)
    with pytest.raises(ValueError, match=r"expected a text-only request, got pictures.*mmproj"):
        hidden(encoder)


def test_official_folder_is_converted_one_tensor_at_a_time(load, tiny_checkpoint, expected, tmp_path):
    """scripts/gguf_files.py on a real folder gives the same files as the tests' writer."""
    files = gguf_files.write_gguf(tiny_checkpoint, tmp_path / "made.gguf", "C", TINY)
    assert [file.name for file in files] == ["made.gguf", "mmproj-made.gguf"]
    assert torch.equal(hidden(load(files[0])), expected("C", "Q8_0"))
