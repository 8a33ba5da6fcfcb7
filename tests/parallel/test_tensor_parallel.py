"""2 and 4 ranks give what one process gives: float32 within 1e-5, bfloat16 as near to float32, every modality."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import Encoder, load_encoder
from h3te_tests.golden_cases import relative_error
from h3te_tests.parallel.requests import REQUESTS
from h3te_tests.tiny_weights import TAP_LAYER

SIZES = (2, 4)
FLOAT32 = 1e-5  # of the largest value
BFLOAT16 = 1.2  # times the error of one process, relative L2 against float32


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


def largest_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def agree(found: dict[int, dict[str, torch.Tensor]], size: int) -> dict[str, torch.Tensor]:
    """What rank 0 has; every rank of the group has the same bits, the others nothing."""
    for rank, tensors in found.items():
        assert tensors.keys() == (found[0].keys() if rank < size else set())
        assert all(torch.equal(tensor, found[0][name]) for name, tensor in tensors.items())
    return found[0]


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
