"""Packed and streamed tiny checkpoints as CLIPs of the host, and a CPU that behaves like a device of its own.

Contract: `open_as(kind, ...)` opens the tiny weights in one of KINDS. On a CPU a resting weight stays where it rests
even when it is loaded; with `like_a_device`, loading makes what it makes on a GPU (one blob, or a copy) and offloading
drops it, so that loaded and offloaded weights go their two ways in an encode that can be compared. `OneDevice` raises
when an op mixes devices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .comfy_host import CPU, make_tiny_clip, picture
from .tiny_weights import TAP_LAYER, tiny_config

META = torch.device("meta")
PACKED = ("nvfp4", "nvfp4_awq", "int8_convrot", "int8_row", "int8_tensor", "fp8", "fp8_e5m2", "hf_block_fp8", "gguf")
STREAMED = ("bf16 streamed", "nvfp4_awq streamed", "gguf streamed")
KINDS = (*PACKED, *STREAMED)


class OneDevice(TorchDispatchMode):
    """Raises when an op mixes devices; a meta compute device alone would let matmul and indexing pass."""

    MOVES = ("aten._to_copy.default", "aten.copy_.default")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim() > 0]
        devices = {t.device.type for t in tensors}
        if len(devices) > 1 and str(func) not in self.MOVES:
            raise RuntimeError(f"{func}: tensors on {sorted(devices)}")
        return func(*args, **(kwargs or {}))


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
def like_a_device(comfy, monkeypatch):
    from h3te.encoder.leaf import Leaf
    from h3te.encoder.packing import join
    from h3te.nodes.host.patcher import H3Patcher

    loading = False
    real = H3Patcher.load

    def load(self, *args, **kwargs):
        nonlocal loading
        loading = True
        try:
            return real(self, *args, **kwargs)
        finally:
            loading = False

    def moved(self, tensor, device):
        if not loading:
            return tensor if tensor.is_meta else torch.empty_like(tensor, device=META)
        if not tensor.is_meta:
            return tensor
        parts = self.rest.parts()
        return parts["weight"].clone() if self.packing is None else join(self.packing, parts, CPU)

    monkeypatch.setattr(H3Patcher, "load", load)
    monkeypatch.setattr(Leaf, "_moved_from_rest", moved)


def leaves(clip) -> list:
    from h3te.encoder.leaf import Leaf

    return [module for module in clip.cond_stage_model.modules() if isinstance(module, Leaf)]


def loaded_leaves(clip) -> list:
    return [leaf for leaf in leaves(clip) if getattr(leaf, "comfy_patched_weights", False)]


def pictures(clip):
    """A request with an image and a video."""
    items = [
        {"type": "image", "data": picture(1)},
        {"type": "video", "data": picture(2, 64, 64, batch=2), "timestamps": [0.0, 0.5]},
    ]
    return clip.tokenize("a fox", minimax_ref_items=items)["qwen3vl_32b"].presentation
