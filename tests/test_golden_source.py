"""The goldens are what transformers gives: every case computed again by the official path, at the recipe's weights.

With H3TE_WRITE_GOLDENS=1 the cases of cases.json that `expected.safetensors` lacks are computed and written; nothing
that is there is changed. tests/goldens/README.md says how the files are made.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from h3te.encoder.presentation import present
from h3te.encoder.tokens import H3Tokenizer, tokenize
from h3te_tests.golden_cases import CASES, GOLDENS, expected, references, relative_error
from h3te_tests.oracle import Oracle, official_inputs, official_tokenizer
from safetensors.torch import save_file

BOUND = 1e-5  # float32 on another processor, or another release of torch
WRITE = os.environ.get("H3TE_WRITE_GOLDENS") == "1"


@pytest.fixture(scope="module")
def official(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    tokenizer = official_tokenizer(tokenizer_folder, tmp_path_factory.mktemp("tokenizer"))
    oracle = Oracle(torch.float32)

    def computed(case: dict) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = official_inputs(case["prompt"], references(case), tokenizer)
        return inputs.ids, oracle.hidden(inputs)

    return computed


@pytest.mark.parametrize("name", CASES)
def test_a_golden_is_what_the_official_path_gives(official, name, tokenizer_folder):
    ids, hidden = official(CASES[name])
    if WRITE and f"{name}.ids" not in expected():
        _add(name, ids, hidden, tokenizer_folder)
    assert ids.tolist() == expected()[f"{name}.ids"].tolist()
    assert relative_error(hidden, expected()[f"{name}.hidden"]) <= BOUND


def _add(name: str, ids: torch.Tensor, hidden: torch.Tensor, tokenizer_folder: Path) -> None:
    """Writes a case that is new; its tags are those of our presentation, which the official path has no word for."""
    presentation = present(CASES[name]["prompt"], references(CASES[name]))
    tags = tokenize(presentation, H3Tokenizer.from_folder(tokenizer_folder)).tags
    found = {"ids": ids, "tags": tags.long(), "hidden": hidden.float().contiguous()}
    save_file(
        expected() | {f"{name}.{kind}": tensor for kind, tensor in found.items()}, GOLDENS / "expected.safetensors"
    )
    expected.cache_clear()
