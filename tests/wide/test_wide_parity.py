"""The parity walk at the released width: two layers in memory, and exact; and what bf16 itself costs."""

from __future__ import annotations

import gc
from pathlib import Path

import demo_tokenizer
import layout
import parity
import pytest
import torch
from given_checkpoint import Checkpoint
from h3te.encoder import VideoReference, load_encoder
from h3te_tests.golden_cases import clip, relative_error
from h3te_tests.wide.wide_weights import LAYERS, make_wide_checkpoint
from measure_encode import peak
from official_path import OfficialPath
from parity_official import OfficialParts

LAYER_BYTES = 975_196_672  # of the released checkpoint
REQUEST = ("As in <Video 1>, but at night.", (VideoReference(clip(48, 128, 224, 3)),))


@pytest.fixture(scope="module")
def checkpoint(tokenizer_folder, tmp_path_factory) -> Checkpoint:
    gc.collect()  # the other module's models
    official = tmp_path_factory.mktemp("official")
    for name, content in demo_tokenizer.tokenizer_files(tokenizer_folder).items():
        (official / name).write_bytes(content)
    folder = make_wide_checkpoint(layout.COMFY / "wide" / "text_encoder")
    return Checkpoint(folder, "", tokenizer_folder, official, False)


def test_walk_holds_two_layers_and_is_exact(checkpoint: Checkpoint, tmp_path: Path):
    parsed = parity._arguments(["--layers", str(LAYERS), "--request", "text", "--prompt", "A red fox."])
    report = parity.walk(parsed, checkpoint, None, tmp_path)
    print(f"\n  {report.memory}")
    assert report.passed and len(report.rows) == LAYERS + 1
    assert report.memory["largest_part"] == LAYER_BYTES
    assert report.memory["resident_peak"] < 2.2 * LAYER_BYTES
    assert report.memory["private_peak"] is None or report.memory["private_peak"] < 0.2 * LAYER_BYTES


def official_hidden(checkpoint: Checkpoint, dtype: torch.dtype) -> torch.Tensor:
    path = OfficialPath(checkpoint.path, tap_layer=LAYERS, dtype=dtype, tokenizer=checkpoint.official_tokenizer)
    outputs: list[torch.Tensor] = [torch.empty(0)]
    OfficialParts(path).run(path.prepare(*REQUEST), lambda call: outputs.__setitem__(0, call.output))
    return outputs[0]


def test_bf16_is_no_further_from_float32_than_transformers(checkpoint: Checkpoint):
    encoder = load_encoder(checkpoint.path, tap_layer=LAYERS, tokenizer=checkpoint.tokenizer)
    ours = encoder.encode(*REQUEST).hidden[0]
    del encoder
    reference = official_hidden(checkpoint, torch.float32)
    theirs = relative_error(official_hidden(checkpoint, torch.bfloat16), reference)
    mine = relative_error(ours, reference)
    print(f"\n  bf16 against float32: ours {mine:.5f}, transformers {theirs:.5f}")
    assert mine <= 1.05 * theirs
    assert peak() < 9e9
