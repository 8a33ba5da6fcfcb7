"""GGUF files for tests: tiny ones with weights, real-size ones without data, damaged ones, and what they stand for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
import torch
from ggml_pack import packed
from gguf_plan import Planned, Types, plan, text_values, vision_values
from h3te_tests.tiny_weights import shapes, tiny_weight

TINY = Types(linear="Q8_0", embedding="Q8_0", vision="Q8_0")
WIDE = Types(linear="Q4_K", down="Q6_K", embedding="Q6_K", vision="Q6_K")  # rows of 256
NAMES = {"A": "ComfyUI", "B": "ComfyUI", "C": "llama.cpp"}


def write_family(path: Path, family: str, config: dict, types: Types = TINY) -> Path:
    """The tiny weights of `config` as a GGUF file, with its vision file beside it for family C; returns `path`."""
    model, second = plan(config, shapes(config), family, types)
    gguf_files.write_tensors(path, model, text_values(config, family), read_tiny(config))
    if second:
        gguf_files.write_tensors(vision_path(path), second, vision_values(config), read_tiny(config))
    return path


def vision_path(path: Path) -> Path:
    return path.with_name(f"mmproj-{path.name}")


def read_tiny(config: dict):
    known = shapes(config)
    return lambda name: _tiny_values(name, known[name])


@lru_cache(maxsize=400)
def _tiny_values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return tiny_weight(name, shape).float().numpy()


def write_sparse_gguf(
    path: Path,
    family: str,
    config: dict,
    types: Types = WIDE,
    values: Mapping | None = None,
    vocabulary: int = 0,
    vision: bool = True,
) -> Path:
    """Real headers over holes. values: key-values to use instead, or in addition; None removes one. vocabulary: tokens
    and merges that the header carries."""
    model, second = plan(config, shapes(config), family, types)
    keys = {**text_values(config, family), **(values or {}), **_vocabulary(vocabulary)}
    _sparse(path, model, {key: value for key, value in keys.items() if value is not None})
    if second and vision:
        _sparse(vision_path(path), second, vision_values(config))
    return path


def write_sparse_vision(path: Path, config: dict, values: Mapping | None = None, types: Types = TINY) -> Path:
    """A vision file alone, without data."""
    _, second = plan(config, shapes(config), "C", types)
    _sparse(path, second, {**vision_values(config), **(values or {})})
    return path


def _vocabulary(size: int) -> dict[str, object]:
    if not size:
        return {}
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [f"token{i}" for i in range(size)],
        "tokenizer.ggml.token_type": [1] * size, "tokenizer.ggml.merges": [f"a{i} b{i}" for i in range(size)],
        "tokenizer.chat_template": "{% for message in messages %}" * 100, "tokenizer.ggml.eos_token_id": 151645,
    }  # fmt: skip


def _sparse(path: Path, tensors: list[Planned], values: Mapping) -> None:
    size = gguf_files.write_header(path, tensors, values)
    if sys.platform == "win32" and size > 1e9:
        pytest.skip("a hole of this size takes real space on this system")
    with path.open("ab") as file:
        file.truncate(file.tell() + size)


def expected_weights(config: dict, family: str, types: Types = TINY) -> dict[str, torch.Tensor]:
    """{released name: float32} of a family's files, unpacked by the `gguf` package from the same blocks."""
    read, found, known = read_tiny(config), {}, shapes(config)
    for tensor in (tensor for file in plan(config, known, family, types) for tensor in file):
        kind = gguf.GGMLQuantizationType[tensor.kind]
        values = gguf.quants.dequantize(packed(tensor.rows(read(tensor.source)), tensor.kind), kind)
        found.setdefault(tensor.source, []).append(torch.from_numpy(np.asarray(values, dtype=np.float32)))
    return {name: _whole(parts, known[name]) for name, parts in found.items()}


def _whole(parts: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0].reshape(shape)
    return torch.stack([part.reshape(*shape[:2], *shape[3:]) for part in parts], dim=2)


def random_blocks(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Random bytes [count, bytes of a block] whose float16 scales are finite."""
    _, stored = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (count, stored), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(110, 130, count)
    for at in HALVES.get(kind, (0,)):
        blocks[:, at : at + 2] = random.normal(0, 0.02, (count, 1)).astype(np.float16).view(np.uint8)
    return blocks


HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "IQ1_M": (),
}  # fmt: skip
