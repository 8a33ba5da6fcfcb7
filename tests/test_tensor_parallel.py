"""Ranks without processes: places, sizes, what is refused, what each keeps; 2, 4 and 8 threads give what one gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3te.encoder import EncoderConfig, build_encoder, load_encoder
from h3te.encoder.parallel import TensorParallel
from h3te.encoder.parallel.cuts import axis_of, local_config
from h3te_tests.gguf_files import WIDE, write_family
from h3te_tests.golden_cases import CASES, references
from h3te_tests.thread_ranks import on_each, thread_ranks
from h3te_tests.tiny_weights import (
    TAP_LAYER,
    divisible_config,
    shapes,
    tiny_config,
    tiny_weight,
    tiny_weights,
    write_tiny_checkpoint,
)

EMBEDDING = "model.language_model.embed_tokens.weight"
DOWN = "model.language_model.layers.0.mlp.down_proj.weight"
Q = "model.language_model.layers.0.self_attn.q_proj.weight"
NORM = "model.language_model.layers.0.input_layernorm.weight"
CASE = CASES["mixed_in_request_order"]
EIGHT = {"num_key_value_heads": 8}  # for as many ranks


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_weights())


def build(parallel: TensorParallel | None = None, config: dict | None = None, **options):
    given = {"dtype": torch.float32, "tap_layer": TAP_LAYER, "parallel": parallel}
    return build_encoder(config or tiny_config(), **{**given, **options})


# places


@pytest.mark.parametrize("size", [3, 5, 6, 7, 16])
def test_other_numbers_of_ranks_are_refused_with_the_reason(size):
    with pytest.raises(ValueError, match=rf"expected 1, 2, 4 or 8 ranks, got {size}\. A rank takes whole heads"):
        TensorParallel(0, size)


def test_a_rank_that_the_group_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"expected a rank from 0 to 1, got 2\. Use TensorParallel\.of"):
        TensorParallel(2, 2)


def test_a_group_is_asked_for_only_after_it_was_made():
    with pytest.raises(RuntimeError, match=r"expected torch.distributed with its process group, got none\. Start the"):
        TensorParallel.of()


def test_the_default_group_of_one_process_is_one_rank(tmp_path):
    store = (tmp_path / "store").as_posix()
    torch.distributed.init_process_group("gloo", init_method=f"file:///{store.lstrip('/')}", rank=0, world_size=1)
    try:
        assert TensorParallel.of() == TensorParallel(0, 1)
        assert not TensorParallel.of(torch.distributed.GroupMember.NON_GROUP_MEMBER).is_member
    finally:
        torch.distributed.destroy_process_group()


def test_the_sum_of_one_rank_is_the_tensor_itself():
    x = torch.ones(3, dtype=torch.bfloat16)
    assert TensorParallel().sum(x) is x


# sizes


def test_the_config_stays_whole_and_the_local_one_is_divided():
    encoder = build(TensorParallel(1, 2))
    assert encoder.config == EncoderConfig.from_dict(tiny_config())
    text, local = encoder.config.text, encoder.local_config.text
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert getattr(local, key) * 2 == getattr(text, key)
    assert (local.hidden_size, local.head_dim) == (text.hidden_size, text.head_dim)
    assert encoder.local_config.vision == encoder.config.vision
    assert encoder.tp_size == 2


@pytest.mark.parametrize(
    "changes, size, message",
    [
        ({}, 4, "num_key_value_heads to divide by 4 ranks, got 2. This model runs on 1 or 2 ranks."),
        ({"num_attention_heads": 6}, 4, "num_attention_heads to divide by 4 ranks, got 6. This model runs on 1 or 2"),
        ({"intermediate_size": 161}, 2, "intermediate_size to divide by 2 ranks, got 161. This model runs on 1 rank."),
        ({"vocab_size": 151_935}, 2, "vocab_size to divide by 2 ranks, got 151,935. This model runs on 1 rank."),
    ],
)
def test_a_number_that_does_not_divide_is_named(changes, size, message):
    with pytest.raises(ValueError, match=message):
        build(TensorParallel(0, size), tiny_config(**changes))


def test_the_released_encoder_divides_by_every_number_of_ranks():
    from h3te.encoder.parallel.cut_table import RELEASED

    for size in (1, 2, 4, 8):
        assert local_config(RELEASED, TensorParallel(0, size)).text.num_key_value_heads * size == 8


def test_linears_and_table_are_cut_and_nothing_else():
    cut = {name for name in shapes(tiny_config()) if axis_of(name) is not None}
    assert {name.rsplit(".", 2)[1] for name in cut} == {
        "embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert not any(".visual." in name or "lm_head" in name for name in cut)


# what each keeps


def test_each_rank_keeps_its_part_and_lets_the_whole_go(weights):
    ranks = [build(TensorParallel(rank, 2)) for rank in range(2)]
    for encoder in ranks:
        assert encoder.load_weights(weights.items()) == set(build().slots.names)
    for name, axis in ((EMBEDDING, 0), (Q, 0), (DOWN, 1)):
        parts = [encoder.slots.get(name) for encoder in ranks]
        assert torch.equal(torch.cat([*parts], axis), weights[name])
        for part in parts:
            assert part.is_contiguous() and part.untyped_storage().nbytes() == part.nbytes
    assert all(encoder.slots.get(NORM).data_ptr() == weights[NORM].data_ptr() for encoder in ranks)
    assert sum(encoder.weight_bytes for encoder in ranks) < 2 * sum(w.nbytes for w in weights.values())


def test_given_shapes_are_those_of_the_whole(weights):
    encoder = build(TensorParallel(0, 2))
    rows, columns = weights[Q].shape
    with pytest.raises(ValueError, match=rf"{Q} is \[{rows // 2}, {columns}\], not \[{rows}, {columns}\]"):
        encoder.load_weights({**weights, Q: weights[Q][: rows // 2]}.items())
    with pytest.raises(ValueError, match=f"missing: {DOWN}"):
        encoder.load_weights((name, tensor) for name, tensor in weights.items() if name != DOWN)
    assert not encoder.is_loaded


def test_one_rank_alone_is_todays_encoder_to_the_bit(weights):
    ids = torch.tensor([1, 151_643, 42])
    encoders = [build(), build(TensorParallel(0, 1))]
    for encoder in encoders:
        encoder.load_weights(weights.items())
        assert encoder.slots.get(Q).data_ptr() == weights[Q].data_ptr()
        assert (encoder.tp_size, encoder.local_config) == (1, encoder.config)
    assert torch.equal(*(encoder.encode_ids(ids) for encoder in encoders))


# outside


def test_outside_the_group_nothing_is_built_and_encoding_says_so(weights, tiny_checkpoint, tokenizer_folder):
    options = {"tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, "parallel": TensorParallel.outside()}
    for encoder in (build(**options), load_encoder(tiny_checkpoint, **options)):
        assert encoder.load_weights(weights.items()) == set()
        encoder.load_to_device()
        encoder.offload_to_cpu()
        assert (list(encoder.parameters()), encoder.is_loaded, encoder.weight_bytes) == ([], False, 0)
        assert not encoder.parallel.is_member
        for encode, given in ((encoder.encode, "a fox"), (encoder.encode_ids, torch.tensor([1]))):
            with pytest.raises(RuntimeError, match=r"expected a rank of the group .* got a process outside it, which"):
                encode(given)


# threads as ranks


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of each format, of a model that 8 ranks can share; rows of 256 where the format needs them."""
    from packed_files import write_packed

    made: dict[str, Path] = {}

    def write(format: str) -> Path:
        if format not in made:
            folder, wide = tmp_path_factory.mktemp(format), divisible_config(256, **EIGHT)
            if format == "gguf":
                made[format] = write_family(folder / "qwen3vl.gguf", "C", wide, WIDE)
            else:
                source = write_tiny_checkpoint(folder / "text_encoder", divisible_config(**EIGHT))
                target = folder / f"{format}.safetensors"
                made[format] = source if format == "bf16" else write_packed(source, target, format, tap=TAP_LAYER)
        return made[format]

    return write


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("format", ["bf16", "nvfp4_awq", "int8_convrot", "gguf"])
def test_ranks_give_what_one_process_gives(written, tokenizer_folder, format, size):
    path = written(format)

    def load(parallel=None):
        options = {"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder}
        return load_encoder(path, parallel=parallel, **options)

    def hidden(encoder) -> torch.Tensor:
        return encoder.encode(CASE["prompt"], references(CASE)).hidden

    expected = hidden(load())
    each = on_each([load(rank) for rank in thread_ranks(size)], hidden)
    assert all(torch.equal(got, each[0]) for got in each)
    assert (each[0] - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_prompt_without_any_id_of_a_rank_is_looked_up_by_the_others(weights):
    ranks = [build(rank) for rank in thread_ranks(2)]
    for encoder in ranks:
        encoder.load_weights(weights.items())
    low = torch.tensor([3, 1, 3])  # all of them rank 0's
    tables = on_each(ranks, lambda e: e.model.language_model.embed_tokens(low, torch.device("cpu"), torch.float32))
    assert all(torch.equal(rows, weights[EMBEDDING][low].float()) for rows in tables)


def test_weights_come_from_each_tensor_as_it_is_given(weights):
    """A generator's tensors may go one by one: no rank holds a whole large one beside its part."""
    import weakref

    held: list[weakref.ref] = []
    known = shapes(tiny_config())

    def pairs():
        for name in weights:
            tensor = tiny_weight(name, known[name])
            if axis_of(name) is not None:
                assert sum(ref() is not None for ref in held) <= 1, name
                held.append(weakref.ref(tensor))
            yield name, tensor

    build(TensorParallel(0, 2)).load_weights(pairs())
