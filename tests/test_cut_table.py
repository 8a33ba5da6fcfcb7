"""The table of cuts: what happens to each weight of each format at the released sizes, and the bytes of each rank."""

from __future__ import annotations

import pytest
from h3te.encoder import load_encoder
from h3te.encoder.checkpoint.fit import needed_shapes
from h3te.encoder.parallel.cut_table import FORMATS, RANKS, RELEASED, cut_table, how, rank_bytes, stored_weights
from h3te_tests.checkpoint_files import released_config
from h3te_tests.packed_headers import PACKED, write_packed
from h3te_tests.tiny_weights import TAP_LAYER, divisible_config

DOWN = "model.language_model.layers.0.mlp.down_proj.weight"
WIDENED = {"int8 convrot", "GGUF Q6_K", "GGUF Q4_K"}  # blocks of 256 columns: 3,200 of 8 ranks hold 12 and a half
VISION = 1_190_533_600


@pytest.fixture(scope="module")
def shapes():
    return needed_shapes(RELEASED, 50)


def test_the_dimensions_are_the_released_ones():
    from h3te.encoder import EncoderConfig

    assert EncoderConfig.from_dict(released_config()) == RELEASED


def test_every_weight_of_every_format_is_cut_exactly_but_down_of_256_blocks_at_8_ranks(shapes):
    for label, format in FORMATS.items():
        weights = stored_weights(format, {name: shapes[name] for name in shapes if ".layers.0." in name})
        for name, stored in weights.items():
            for size in RANKS:
                widened = name == DOWN and size == 8 and label in WIDENED
                assert how(name, stored, shapes[name], size).startswith("widened" if widened else "exact"), (
                    label,
                    name,
                )


def test_ranks_read_the_file_once_and_what_is_whole_once_each(shapes):
    weights = stored_weights(FORMATS["bf16, fp16"], shapes)
    whole = sum(stored.nbytes for stored in weights.values())
    assert whole == 51_506_191_840
    norms = sum(w.nbytes for name, w in weights.items() if "norm" in name and ".visual." not in name)
    for size in RANKS:
        each = rank_bytes(weights, shapes, size)
        assert len(set(each)) == 1
        assert sum(each) == whole + (size - 1) * (VISION + norms)


def test_the_table_names_each_format_and_size():
    text = cut_table()
    assert "| nvfp4_awq | 15.69 GB | 8.44 GB | 4.82 GB | 3.00 GB |" in text
    assert "| int8 convrot | down | columns | exact | exact | widened, +4.1% |" in text
    assert all(f"| {label} |" in text for label in FORMATS)


@pytest.mark.parametrize("kind", ["bf16", "nvfp4_awq", "int8_convrot", "fp8_row", "fp8_blocks"])
def test_a_checkpoint_is_shared_by_its_headers_alone(tmp_path, kind):
    """Files of holes: nothing of the weights is read."""
    path = write_packed(tmp_path / "encoder.safetensors", PACKED[kind](divisible_config(256)))
    encoder = load_encoder(path, tap_layer=TAP_LAYER)
    weights = encoder.source.weights
    for size in (2, 4):
        each = rank_bytes(weights, encoder.slots.shapes, size)
        assert len(each) == size and max(each) < sum(w.nbytes for w in weights.values()) < sum(each)
