"""The nvfp4_awq file at the released width, read layer by layer: memory does not grow with depth, and no bit differs.

Each encode runs in a process of its own; `make bench ARGS=stream` measures the same and adds times.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import layout
import pytest
import torch
from h3te_tests.wide.wide_packed import LAYERS, make_packed_checkpoint
from safetensors.torch import load_file

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_stream
from wide_files import PACKED_FILE


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return make_packed_checkpoint(PACKED_FILE)


@pytest.fixture(scope="module")
def measured(checkpoint, tokenizer_folder, tmp_path_factory) -> dict[tuple[str, int], SimpleNamespace]:
    """(reader, layers) -> `found` (what was measured) and `hidden` (the file with the hidden states)."""
    folder, results = tmp_path_factory.mktemp("hidden"), {}
    for reader, layers in bench_stream.CASES:
        hidden = folder / f"{reader}_{layers}.safetensors"
        found = bench_stream.measure(checkpoint, reader, layers, tokenizer_folder, hidden)
        results[reader, layers] = SimpleNamespace(found=found, hidden=hidden)
        print(f"\n  {layers} layers, {reader}: {found}")
    return results


def test_every_reader_gives_the_same_bits(measured):
    for (reader, layers), one in measured.items():
        assert bench_stream.same_bits(one.hidden, measured["stream", layers].hidden), (reader, layers)


def test_hidden_states_are_sane_and_depend_on_depth(measured):
    shallow, deep = (load_file(measured["stream", layers].hidden)["hidden"] for layers in bench_stream.DEPTHS)
    assert bool(torch.isfinite(deep).all()) and 0.3 < float(deep.float().std()) < 3
    assert not torch.equal(shallow, deep)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="private memory is known on Linux alone")
def test_private_memory_of_streaming_does_not_depend_on_depth(measured):
    private = [measured["stream", layers].found["private"] for layers in bench_stream.DEPTHS]
    assert bench_stream.apart(*private) <= bench_stream.APART_LIMIT
    assert max(private) < bench_stream.PRIVATE_LIMIT
    assert measured["read", bench_stream.DEPTHS[0]].found["private"] > 4e9  # the figure does see resident weights


def test_bytes_are_those_of_a_packed_file(measured):
    eight, sixteen = (measured["stream", layers].found["weight_bytes"] for layers in bench_stream.DEPTHS)
    assert bench_stream.DEPTHS[1] == LAYERS
    assert 8 * 274e6 < sixteen - eight < 8 * 275e6  # of 975 MB in bf16


def test_packed_checkpoint_is_refused_without_space(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(
        RuntimeError, match=r"test-wide: expected 8\.\d GB of free disk .*got 1\.0 GB\. Free some space"
    ):
        make_packed_checkpoint(tmp_path / "wide.safetensors")
