"""The demo's claims about caches fail when caches do not do what is claimed."""

from __future__ import annotations

from dataclasses import replace

import demo_cache_claims as claims
import pytest
import torch

TOKENS, ALIKE = 12, 9
WHOLE = claims.Ran(torch.ones(1, TOKENS, 4), torch.ones(1, TOKENS, dtype=torch.int64), "3.0 s, cache: miss", 3.0)
HIT = replace(WHOLE, text="0.0 s, cache: hit (RAM)\nanswered from the cache: no weight was read", seconds=0.1)
PREFIX = replace(WHOLE, text=f"1.0 s, cache: prefix {ALIKE} of {TOKENS} tokens", seconds=1.0)


def off(by: float) -> torch.Tensor:
    """The whole computation's result, so far away from ones."""
    return torch.ones(1, TOKENS, 4) * (1 + by)


def test_claim_of_a_hit_passes_for_equal_bits_without_weights():
    claim = claims._hit_claim(WHOLE, HIT)
    assert claim.passed
    assert "hit (RAM), identical to the bit; 0.10 s, the first time 3.00 s" in claim.figure


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (WHOLE, WHOLE),  # encoded again
        (HIT, HIT),  # the first was answered already: nothing is shown
        (WHOLE, replace(HIT, hidden=off(1e-6))),
        (WHOLE, replace(HIT, tags=torch.zeros(1, TOKENS, dtype=torch.int64))),
        (WHOLE, replace(HIT, text="cache: hit (RAM)")),  # though weights were read
    ],
)
def test_claim_of_a_hit_fails_for_anything_else(first, again):
    assert not claims._hit_claim(first, again).passed


def test_claim_of_a_prefix_passes_when_all_before_the_word_is_reused():
    claim = claims._prefix_claim(PREFIX, WHOLE, ALIKE)
    assert claim.passed
    assert "prefix 9 of 12 tokens" in claim.figure
    assert "(0.33)" in claim.figure


@pytest.mark.parametrize(
    ("changed", "whole", "alike"),
    [
        (WHOLE, WHOLE, ALIKE),  # nothing was reused
        (HIT, WHOLE, ALIKE),  # another request's answer
        (PREFIX, PREFIX, ALIKE),  # the one to compare with was not whole
        (PREFIX, WHOLE, ALIKE + 1),  # less than could be
        (PREFIX, WHOLE, ALIKE - 1),  # the changed word too
        (replace(PREFIX, seconds=3.0), WHOLE, ALIKE),
    ],
)
def test_claim_of_a_prefix_fails_for_anything_else(changed, whole, alike):
    assert not claims._prefix_claim(changed, whole, alike).passed


@pytest.mark.parametrize(("error", "passed"), [(0.01, True), (0.0119, True), (0.0121, False), (0.5, False)])
def test_claim_of_rounding_fails_beyond_its_limit(error, passed):
    exact = torch.ones(TOKENS, 4)
    claim = claims._rounding_claim(replace(PREFIX, hidden=off(error)), replace(WHOLE, hidden=off(0.01)), exact)
    assert claim.passed is passed


def test_requests_differ_in_one_word_that_stands_behind_the_pictures():
    first, changed = claims.FIRST.prompt.split(), claims.CHANGED.prompt.split()
    assert len(first) == len(changed)
    assert sum(a != b for a, b in zip(first, changed, strict=True)) == 1
    assert claims.WHOLE.prompt == claims.CHANGED.prompt != claims.FIRST.prompt == claims.AGAIN.prompt
