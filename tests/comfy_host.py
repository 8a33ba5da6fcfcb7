"""A ComfyUI imported into the test process, on the CPU, and the tiny encoder as a CLIP of it.

Contract: `comfy` is a session fixture (import it into a test module); nothing of ComfyUI is imported before it runs.
The host is the one of `comfy_folder`. Tests that must not see comfy run in subprocesses.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from .tiny_weights import TAP_LAYER

CPU = torch.device("cpu")
MODULES = ("comfy.sd", "comfy.model_management", "comfy.model_patcher", "comfy.hooks", "comfy.lora", "comfy.ops")


def import_host(folder: Path) -> SimpleNamespace:
    """The host's modules by their last name, plus `nodes` and `folder_paths`. Idempotent."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # first: the pack's root, if Python put it there, has a nodes/ of its own
    importlib.import_module("comfy.cli_args").args.cpu = True
    level = logging.getLogger().level
    found = {name.rsplit(".", 1)[-1]: importlib.import_module(name) for name in (*MODULES, "nodes", "folder_paths")}
    logging.getLogger().setLevel(level)
    return SimpleNamespace(**found, folder=folder)


@pytest.fixture(scope="session")
def comfy(comfy_folder: Path) -> Iterator[SimpleNamespace]:
    yield import_host(comfy_folder)


@pytest.fixture
def tiny_clip(comfy: SimpleNamespace, tiny_checkpoint: Path, tokenizer_folder: Path):
    """A fresh CLIP handle over the tiny checkpoint, computing in bfloat16."""
    return make_tiny_clip(tiny_checkpoint, tokenizer_folder)


def make_tiny_clip(
    checkpoint: Path, tokenizer: Path, device: torch.device = CPU, dtype=torch.bfloat16, reader=None, unpack="torch"
):
    from h3te.encoder import load_encoder
    from h3te.nodes.host.clip import H3Clip, make_patcher
    from h3te.nodes.host.leaf import HostOps
    from h3te.nodes.host.tree import HostTree

    encoder = load_encoder(checkpoint, dtype=dtype, tap_layer=TAP_LAYER, ops=HostOps, tokenizer=tokenizer)
    return H3Clip(make_patcher(HostTree(encoder, None, reader, unpack), device, CPU))


def picture(seed: int, height: int = 96, width: int = 128, channels: int = 3, batch: int = 1) -> torch.Tensor:
    """A deterministic IMAGE [batch, height, width, channels] whose floats are exact uint8 values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, height, width, channels), generator=generator).float() / 255


class StandInVAE:
    """Right shapes, values made from the pixels: enough for CONDITIONING, without a VAE's weights."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        frames, height, width, _ = pixels.shape
        steps = 1 if frames == 1 else (frames - 5) // 17 * 5 + 2
        return torch.full((1, 24, steps, height // 16, width // 16), float(pixels.mean()))


class StandInAudioVAE:
    audio_sample_rate = 32000

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """waveform [1, L, C] -> [1, 32, 2, T], 40 latent frames per second."""
        return torch.full((1, 32, 2, max(1, round(waveform.shape[1] / 800))), float(waveform.mean()))


def sound(seconds: float = 1.0, rate: int = 32000, batch: int = 1) -> dict:
    wave = torch.sin(torch.arange(int(seconds * rate)) / 50).expand(batch, 2, -1)
    return {"waveform": wave, "sample_rate": rate}
