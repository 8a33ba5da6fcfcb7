"""Ranks that are outside, stop, hold a bad weight, or never come: each says which, and nothing hangs in silence."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.parallel import ranks
from h3te_tests.parallel.agreement import FLOAT32, SIZES, agree, largest_error
from h3te_tests.tiny_weights import divisible_config

FACTS = ("member", "loaded", "bytes", "parameters", "tp_size")


def test_ranks_outside_the_group_hold_nothing(pool, shared_checkpoint):
    found = pool.run("outside", 2, path=str(shared_checkpoint))
    facts = [dict(zip(FACTS, tensors["facts"].tolist(), strict=True)) for tensors in found.values()]
    assert facts[2:] == [dict.fromkeys(FACTS, 0)] * 2
    for inside in facts[:2]:
        assert inside["member"] and inside["loaded"] and inside["bytes"] and inside["parameters"]
        assert inside["tp_size"] == 2


def test_encoding_outside_the_group_is_refused(pool, shared_checkpoint):
    errors = pool.errors("encode_outside", 2, path=str(shared_checkpoint))
    assert errors[:2] == ["", ""]
    assert all("RuntimeError: Encoder: expected a rank of the group" in error for error in errors[2:])


def test_three_ranks_are_refused_on_each(pool, shared_checkpoint):
    errors = pool.errors("encode", 3, requests=["text"], path=str(shared_checkpoint))
    assert all("TensorParallel: expected 1, 2, 4 or 8 ranks, got 3." in error for error in errors[:3])
    assert errors[3] == ""


def test_a_model_that_four_ranks_cannot_share_is_refused_on_each(pool, tiny_checkpoint):
    errors = pool.errors("encode", 4, requests=["text"], path=str(tiny_checkpoint))
    assert all("num_key_value_heads to divide by 4 ranks, got 2. This model runs on 1 or 2 ranks." in e for e in errors)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("at", [1, 8])
def test_ranks_that_stop_together_serve_again(pool, shared_checkpoint, at, size):
    """In the vision tower, and in the decoder."""
    got = agree(pool.run("stop_together", size, path=str(shared_checkpoint), at=at), size)
    again = agree(pool.run("encode", size, path=str(shared_checkpoint), requests=["pictures"]), size)
    assert torch.equal(got["pictures"], again["pictures"])


@pytest.mark.parametrize("size", SIZES)
def test_a_bad_weight_of_one_rank_is_an_error_on_all_at_the_same_layer(pool, size):
    errors = pool.errors("spoilt", size, config=divisible_config(), rank=1)
    for rank, error in enumerate(errors[:size]):
        assert "got NaN or infinity, first in layer 3 of 5" in error
        assert f"on cpu, rank {rank} of {size}" in error
    for rank, error in enumerate(errors[:size]):
        place = "model.language_model.layers.2.mlp.down_proj.weight" if rank == 1 else "what another rank holds of it"
        assert f"NaN or infinity is in {place}" in error
    assert errors[size:] == [""] * (4 - size)


@pytest.mark.parametrize("size", SIZES)
def test_a_bad_weight_in_the_tower_of_one_rank_is_an_error_on_all(pool, shared_checkpoint, size):
    """The others have finite features: left alone they would wait in the decoder for a rank that has stopped."""
    errors = pool.errors("spoilt_vision", size, path=str(shared_checkpoint), rank=1)
    for rank, error in enumerate(errors[:size]):
        place = "model.visual.blocks.1.mlp.linear_fc1.weight" if rank == 1 else "what another rank holds of it"
        assert (
            f"first in vision block 2 of 6 (model.visual.blocks.1), computed in float32 on cpu, rank {rank} of" in error
        )
        assert f"NaN or infinity is in {place}" in error


def test_four_ranks_that_share_a_group_with_two_serve_afterwards(pool, shared_checkpoint):
    two, four = (
        agree(pool.run("encode", size, path=str(shared_checkpoint), requests=["text"]), size)["text"] for size in SIZES
    )
    assert largest_error(two, four) <= FLOAT32


def test_a_rank_that_never_comes_is_named(tmp_path, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(ranks, "SECONDS", 40)
    monkeypatch.setattr(ranks, "WAIT", 5)
    own = ranks.RankPool(2, tmp_path, {"H3TE_TEST_TOKENIZER": str(tokenizer_folder)})
    try:
        with pytest.raises(pytest.fail.Exception) as failed:
            own.run("silent", 2, rank=1)
        assert "rank 1 of 2: no answer for 40 s" in str(failed.value)
        assert "rank 0 of 2: " in str(failed.value)
    finally:
        own.close()
