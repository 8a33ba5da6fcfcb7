"""The parity walk on packed files: against transformers on the unpacked matrices, and against bf16 by depth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

import given_checkpoint
import parity
import parity_report
from given_checkpoint import Checkpoint
from h3te_tests.tiny_weights import TAP_LAYER
from packed_files import write_packed
from parity_walk import SCALED_LIMIT

ARGUMENTS = ["--layers", str(TAP_LAYER), "--request", "text", "--prompt", "A red fox."]


@pytest.fixture
def checkpoint(tokenizer_folder):
    """path -> as `given_checkpoint.given` would return it, which refuses the tiny width."""
    official = given_checkpoint.official_tokenizer(tokenizer_folder)
    return lambda path: Checkpoint(path, "", tokenizer_folder, official, True)


@pytest.fixture
def packed(tiny_checkpoint, tmp_path):
    return lambda kind: write_packed(tiny_checkpoint, tmp_path / f"{kind}.safetensors", kind, tap=TAP_LAYER)


@pytest.mark.parametrize("kind", ["nvfp4", "int8_row", "fp8_legacy"])
def test_packed_file_is_bit_equal_with_transformers_on_its_matrices(kind, packed, checkpoint, tmp_path):
    report = parity.walk(parity._arguments(ARGUMENTS), checkpoint(packed(kind)), None, tmp_path)
    assert report.passed and len(report.rows) == TAP_LAYER + 1
    assert {row.same_input.relative for row in report.rows if row.same_input} == {0}
    assert {row.chained.relative for row in report.rows} == {0}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_awq_file_is_within_the_rounding_of_its_factor(dtype, packed, checkpoint, tmp_path):
    parsed = parity._arguments([*ARGUMENTS, "--dtype", dtype])
    report = parity.walk(parsed, checkpoint(packed("nvfp4_awq")), None, tmp_path)
    apart = [row.same_input.relative for row in report.rows if row.same_input]
    assert report.passed and 0 < max(apart) <= SCALED_LIMIT[getattr(torch, dtype)]


def test_error_against_bf16_is_told_by_depth(tiny_checkpoint, packed, checkpoint, tmp_path):
    parsed = parity._arguments([*ARGUMENTS, "--dtype", "float32"])
    other = checkpoint(packed("nvfp4_awq"))
    report = parity.walk(parsed, checkpoint(tiny_checkpoint), other, tmp_path)
    errors = {part.name: error.relative for part, error in report.against}
    assert report.passed and 0 < errors["decoder input"] < errors["layer 0"] < errors[f"layer {TAP_LAYER - 1}"] < 0.5
    said = parity_report.closing(report, Path("results"))
    assert f"{other.path.name} against" in said and "by depth:\n    decoder input: " in said
    assert f"    layer {TAP_LAYER - 1}: {errors[f'layer {TAP_LAYER - 1}']:.1e}" in said


def test_checkpoint_is_judged_by_the_layers_that_are_used(tiny_checkpoint, comfy_folder):
    with pytest.raises(ValueError, match="expected at least 50 decoder layers, got 6"):
        given_checkpoint.given(tiny_checkpoint, comfy_folder, "parity")
    with pytest.raises(ValueError, match="expected hidden width") as error:
        given_checkpoint.given(tiny_checkpoint, comfy_folder, "parity", TAP_LAYER)
    assert "decoder layers" not in str(error.value)
