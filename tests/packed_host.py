"""Packed and streamed tiny checkpoints as CLIPs of the host, and a CPU that behaves like a device of its own.

Contract: `open_as(kind, ...)` opens the tiny weights in one of KINDS, or as bf16. On a CPU loading moves nothing; with
`like_a_device` it makes what it makes on a GPU, a copy or a blob, and offloading drops it (scripts/budgets_device.py).
`request(clip, what)` is one of REQUESTS.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .comfy_host import make_tiny_clip, picture
from .tiny_weights import TAP_LAYER, tiny_config

PACKED = ("nvfp4", "nvfp4_awq", "int8_convrot", "int8_row", "int8_tensor", "fp8", "fp8_e5m2", "hf_block_fp8", "gguf")
STREAMED = ("bf16 streamed", "nvfp4_awq streamed", "gguf streamed")
KINDS = (*PACKED, *STREAMED)


@pytest.fixture(scope="session")
def stored_as(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny checkpoint in a stored format; each is written once."""
    made: dict[str, Path] = {"bf16": tiny_checkpoint}

    def write(kind: str) -> Path:
        if kind not in made:
            made[kind] = _write(kind, tiny_checkpoint, tmp_path_factory.mktemp(kind))
        return made[kind]

    return write


def _write(kind: str, source: Path, folder: Path) -> Path:
    from packed_files import write_packed

    from .gguf_files import write_family

    if kind == "gguf":
        return write_family(folder / "tiny.gguf", "A", tiny_config())
    target = folder / "text_encoder" if kind == "hf_block_fp8" else folder / f"{kind}.safetensors"
    return write_packed(source, target, kind, tap=TAP_LAYER)


@pytest.fixture
def open_as(comfy, stored_as, tokenizer_folder, monkeypatch):
    """A CLIP over the tiny weights in one of KINDS, its weights read; tiny tensors are streamed as large ones are."""
    monkeypatch.setattr("h3te.encoder.checkpoint.reader.STREAMED_FROM", 4096)

    def open_clip(kind: str, dtype: torch.dtype = torch.bfloat16, **options):
        from h3te.nodes.host.readers import settle

        stored, _, streamed = kind.partition(" ")
        reader = "stream" if streamed else "mmap"
        clip = make_tiny_clip(stored_as(stored), tokenizer_folder, dtype=dtype, reader=reader, **options)
        settle(clip.patcher.model)
        clip.encoder.materialise()
        return clip

    return open_clip


@pytest.fixture
def like_a_device(comfy):
    from budgets_device import stand_in_device

    with stand_in_device():
        yield


def leaves(clip) -> list:
    from h3te.encoder.leaf import Leaf

    return [module for module in clip.cond_stage_model.modules() if isinstance(module, Leaf)]


def loaded_leaves(clip) -> list:
    return [leaf for leaf in leaves(clip) if getattr(leaf, "comfy_patched_weights", False)]


IMAGE = {"type": "image", "data": picture(1)}
VIDEO = {"type": "video", "data": picture(2, 64, 64, batch=2), "timestamps": [0.0, 0.5]}
REQUESTS = {"text": [], "image": [IMAGE], "video": [VIDEO], "mixed": [IMAGE, VIDEO]}


def request(clip, what: str):
    """A presentation of one of REQUESTS."""
    return clip.tokenize("a fox", minimax_ref_items=REQUESTS[what])["qwen3vl_32b"].presentation


def pictures(clip):
    """A request with an image and a video."""
    return request(clip, "mixed")
