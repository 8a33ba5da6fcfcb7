"""The conditioning store's benchmark at tiny size: hits from both places, equal to the bit; targets met and missed."""

from __future__ import annotations

import sys

import layout
import pytest

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_store
import measure_store
from shapes import WARM_UP


def test_one_request_is_encoded_and_answered_from_memory_and_disk(tiny_checkpoint, tokenizer_folder, tmp_path):
    found = measure_store.measure(tiny_checkpoint, WARM_UP, 2, tokenizer_folder, tmp_path / "store")
    assert found["equal"] and found["tokens"] > 64 and found["hit"].keys() == {"ram", "disk"}
    assert len(list((tmp_path / "store").glob("*.safetensors"))) == 1
    rows = {name: bench_store.row([found, found]) for name in bench_store.REQUESTS}
    assert "keyframes" in "\n".join(bench_store.lines(rows)) and len(bench_store.targets(rows)) == 4


@pytest.mark.parametrize(
    ("changes", "missed"),
    [({}, []), ({"seconds": 0.4}, [0]), ({"hit": {"ram": 0.001, "disk": 0.06}}, [2]), ({"equal": False}, [3])],
)
def test_slow_hit_or_other_bits_are_a_miss(changes, missed):
    found = {"tokens": 2344, "seconds": 10.0, "hit": {"ram": 0.001, "disk": 0.03}, "put_seconds": 0.1,
             "weights_identity_seconds": 0.01, "equal": True}  # fmt: skip
    rows = {name: bench_store.row([found | changes]) for name in bench_store.REQUESTS}
    assert [i for i, (met, _) in enumerate(bench_store.targets(rows)) if not met] == missed
