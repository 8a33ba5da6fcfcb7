"""2 and 4 ranks give what one process gives: float32 within 1e-5, bfloat16 as near to float32, every modality."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import Encoder, load_encoder
from h3te.encoder.cache.prefixes import kept_bytes
from h3te.encoder.parallel import TensorParallel
from h3te.encoder.parallel.cuts import local_config
from h3te.encoder.presentation import present_each
from h3te_tests.golden_cases import relative_error
from h3te_tests.parallel.agreement import BFLOAT16, FLOAT32, SIZES, agree, largest_error
from h3te_tests.parallel.requests import EDITED, PROMPTS, REQUESTS
from h3te_tests.tiny_weights import TAP_LAYER, divisible_config

PLENTY, LITTLE = 2_000, 150  # tokens that fit into a prefix store: all of the edits', and about one request


@pytest.fixture(scope="module")
def one(shared_checkpoint, tokenizer_folder):
    """Encoders of one process, by compute dtype."""

    def load(dtype: torch.dtype = torch.float32) -> Encoder:
        return load_encoder(shared_checkpoint, dtype=dtype, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)

    return load


@pytest.fixture(scope="module")
def expected(one) -> dict[str, torch.Tensor]:
    encoder = one()
    return {name: encoder.encode(*request).hidden[0] for name, request in REQUESTS.items()}


@pytest.mark.parametrize("size", SIZES)
def test_float32_is_that_of_one_process_in_every_modality(pool, shared_checkpoint, expected, size):
    got = agree(pool.run("encode", size, requests=[*REQUESTS], path=str(shared_checkpoint)), size)
    errors = {name: largest_error(got[name], expected[name]) for name in REQUESTS}
    print(size, errors)
    assert max(errors.values()) <= FLOAT32


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_no_further_from_float32_than_one_process(pool, shared_checkpoint, one, expected, size):
    given = {"requests": [*REQUESTS], "path": str(shared_checkpoint), "dtype": "bfloat16"}
    got, alone = agree(pool.run("encode", size, **given), size), one(torch.bfloat16)
    for name, request in REQUESTS.items():
        ours = relative_error(got[name], expected[name])
        theirs = relative_error(alone.encode(*request).hidden[0], expected[name])
        print(size, name, ours, theirs, ours / theirs)
        assert ours <= BFLOAT16 * theirs, name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lend_once", [False, True])
def test_several_prompts_in_one_pass(pool, shared_checkpoint, one, lend_once, size):
    got = agree(pool.run("encode_list", size, path=str(shared_checkpoint), lend_once=lend_once), size)
    each = one().encode_presentations(present_each(PROMPTS, REQUESTS["both"][1]), lend_once=lend_once)
    for i, done in enumerate(each):
        assert largest_error(got[str(i)], done.hidden[0]) <= FLOAT32


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("room", [PLENTY, LITTLE])
def test_prefixes_are_reused_and_dropped_alike_on_every_rank(pool, shared_checkpoint, one, room, dtype, size):
    exact, rounded = one(), one(getattr(torch, dtype))
    local = local_config(exact.config, TensorParallel(0, size)).text
    budget = kept_bytes(local, room, rounded.dtype, TAP_LAYER)
    given = {"path": str(shared_checkpoint), "budget": budget, "dtype": dtype}
    got = agree(pool.run("encode_edits", size, **given), size)
    for i, (prompt, references) in enumerate(EDITED):
        want = exact.encode(prompt, references, vision_packing="per_reference").hidden[0]
        fresh = rounded.encode(prompt, references, vision_packing="per_reference").hidden[0]
        if dtype == "float32":
            assert largest_error(got[str(i)], want) <= FLOAT32
        else:
            assert relative_error(got[str(i)], want) <= BFLOAT16 * relative_error(fresh, want)
    reused = [int(got[f"{i}.reused"][0]) for i in range(len(EDITED))]
    assert reused[0] == 0 and all(reused[1:3]) and (reused[-1] > 0) == (room == PLENTY)


@pytest.mark.parametrize("size", SIZES)
def test_given_weights_are_kept_in_parts(pool, shared_checkpoint, expected, size):
    got = agree(pool.run("encode_given", size, requests=["pictures"], config=divisible_config()), size)
    assert largest_error(got["pictures"], expected["pictures"]) <= FLOAT32


@pytest.mark.parametrize("size", SIZES)
def test_loading_to_the_device_and_back_changes_nothing(pool, shared_checkpoint, size):
    got = agree(pool.run("encode_between_devices", size, path=str(shared_checkpoint)), size)
    assert torch.equal(got["pictures"], got["again pictures"])


def test_a_group_of_one_is_todays_encoder_to_the_bit(pool, shared_checkpoint, expected):
    got = agree(pool.run("encode", 1, requests=[*REQUESTS], path=str(shared_checkpoint)), 1)
    assert all(torch.equal(got[name], expected[name]) for name in REQUESTS)
