"""The parity walk at the released width: two layers in memory, and exact."""

from __future__ import annotations

import demo_tokenizer
import layout
import parity
from given_checkpoint import Checkpoint
from h3te_tests.wide.wide_weights import LAYERS, make_wide_checkpoint
from measure_encode import peak

LAYER_BYTES = 975_196_672  # of the released checkpoint


def test_walk_holds_two_layers_and_is_exact(tokenizer_folder, tmp_path):
    folder = make_wide_checkpoint(layout.COMFY / "wide" / "text_encoder")
    for name, content in demo_tokenizer.tokenizer_files(tokenizer_folder).items():
        (tmp_path / name).write_bytes(content)
    checkpoint = Checkpoint(folder, "", tokenizer_folder, tmp_path, False)
    parsed = parity._arguments(["--layers", str(LAYERS), "--request", "text", "--prompt", "A red fox."])
    report = parity.walk(parsed, checkpoint, None, tmp_path / "states")
    print(f"\n  {report.memory}")
    assert report.passed and len(report.rows) == LAYERS + 1
    assert report.memory["largest_part"] == LAYER_BYTES
    assert report.memory["resident_peak"] < 2.2 * LAYER_BYTES
    assert report.memory["private_peak"] is None or report.memory["private_peak"] < 0.2 * LAYER_BYTES
    assert peak() < 9e9
