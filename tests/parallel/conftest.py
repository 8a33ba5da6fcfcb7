"""The pool of ranks, and checkpoints that they can share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pool(tmp_path_factory, tokenizer_folder):
    """Four processes; groups of 1, 2 and 4 of them do the jobs."""
    from h3te_tests.parallel.ranks import RankPool

    ranks = RankPool(4, tmp_path_factory.mktemp("ranks"), {"H3TE_TEST_TOKENIZER": str(tokenizer_folder)})
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def shared_checkpoint(tmp_path_factory) -> Path:
    """Of `divisible_config`, in the official layout."""
    from h3te_tests.tiny_weights import divisible_config, write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("divisible") / "text_encoder", divisible_config())
