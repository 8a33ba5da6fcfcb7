"""The benchmark of ranks over two processes at tiny size: parts are read, and sums are those of the formula."""

from __future__ import annotations

import json
import os
import sys

import layout

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_parallel
import measure_parallel
from peers import Ours
from scaling_model import reduced_bytes
from shapes import SHAPES

LAYERS, WIDTH = 5, 64


def test_two_ranks_read_parts_and_add_up_what_the_formula_says(
    shared_checkpoint, tokenizer_folder, tmp_path, monkeypatch
):
    out = tmp_path / "hidden"
    options = ["--layers", str(LAYERS), "--tokenizer", str(tokenizer_folder), "--out", str(out)]
    folders = (layout.ROOT / "scripts", layout.ROOT / "benchmarks")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    found = measure_parallel.start(2, ["2", str(shared_checkpoint), "prompt", *options])
    row = bench_parallel.row([found])
    assert row["tokens"] == 312 and row["sums"]["count"] == [2 * LAYERS + 2]
    assert row["sums"]["bytes"] == [reduced_bytes(312, LAYERS, WIDTH)]
    one = Ours(shared_checkpoint, LAYERS, tokenizer_folder)
    assert row["bytes_read"] < one.encoder.weight_bytes < row["read_by_all"]
    alone = tmp_path / "alone"
    measure_parallel.measure(0, 1, shared_checkpoint, SHAPES["prompt"], LAYERS, tokenizer_folder, alone)
    assert bench_parallel.apart(out, alone) <= bench_parallel.SAME
    json.dumps(row)
