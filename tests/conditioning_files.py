"""CONDITIONING of every kind that a file holds, and comparing two of them to the bit.

Contract: `conditioning()` has what ComfyUI's H3 nodes put into one; `assert_same(a, b)` compares kinds, order, dtypes
and bits. `folders` is a fixture: empty input and output folders of ComfyUI while the test runs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(dtype)


def conditioning(tokens: int = 7) -> list:
    """Keyframes, references with and without sound, numbers, what the encode node knows; hidden is a widened bf16."""
    hidden = tensor(1, tokens, 16, dtype=torch.bfloat16).float()
    refs = [
        {"kind": "image", "picture_index": 0, "latent_h": 4, "latent_w": 6, "latent": tensor(1, 24, 1, 4, 6)},
        {
            "kind": "video", "latent_t": 2, "latent_h": 4, "latent_w": 6, "ref_audio_t": 0,
            "latent": tensor(1, 24, 2, 4, 6), "audio_latent": None,
        },
        {"kind": "audio", "ref_audio_t": 5, "audio_latent": tensor(1, 32, 2, 5)},
    ]  # fmt: skip
    extras = {
        "pooled_output": None,
        "minimax_token_tags": torch.tensor([1, 0] * (tokens // 2) + [1] * (tokens % 2)),
        "minimax_keyframes": [{"resolved_frame_index": 0, "latent": tensor(1, 24, 1, 4, 6, seed=3)}],
        "minimax_refs": refs,
        "minimax_visual_cond_noise_aug": 0.1,
        "h3te": {"presentation": "<Picture 1>: a fox", "prompt": "a fox", "encoder": "nvfp4", "parts": {"prompt": 3}},
    }
    return [[hidden, extras]]


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(bits(a), bits(b))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert [type(key) for key in a] == [type(key) for key in b]
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif hasattr(a, "tensors"):
        assert_same(a.tensors, b.tensors)
    else:
        assert repr(a) == repr(b)  # -0.0 and nan too


def bits(made: torch.Tensor) -> torch.Tensor:
    return made.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


@pytest.fixture
def folders(comfy: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`.input` and `.output`, empty, ComfyUI's own for the test."""
    made = SimpleNamespace(input=tmp_path / "in put", output=tmp_path / "out put", outside=tmp_path / "outside")
    for folder in vars(made).values():
        folder.mkdir()
    monkeypatch.setattr(comfy.folder_paths, "input_directory", str(made.input))
    monkeypatch.setattr(comfy.folder_paths, "output_directory", str(made.output))
    return made
