"""Bad checkpoints for tests: what load_encoder and the doctor must both say of one.

Contract: `refused(path, *parts)` -> the text of the one error.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from h3te.encoder import inspect_checkpoint, load_encoder
from h3te_tests.checkpoint_files import INDEX, write_json
from h3te_tests.tiny_weights import TAP_LAYER
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]  # of the tiny checkpoint
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def refused(path: Path, *parts: str, tap_layer: int = TAP_LAYER, error: type = ValueError) -> str:
    """The text of load_encoder's error, which holds all `parts`; the doctor says the same things first."""
    with pytest.raises(error) as raised:
        load_encoder(path, tap_layer=tap_layer)
    text = str(raised.value)
    assert "expected" in text
    assert "got" in text
    for part in parts:
        assert part in text
    report = inspect_checkpoint(path, tap_layer)
    assert text.startswith(report.problems[0])
    assert not report.is_h3
    return text


def spoil_index(folder: Path, **changes) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= changes
    write_json(folder / INDEX, index)
