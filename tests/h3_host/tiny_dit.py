"""A shrunken H3 diffusion model in the released key layout, with random weights, for the host's own loader and sampler.

Contract: `tiny_dit_weights(text_dim)` names every tensor of the released single file; the host's loader infers each
size from the shapes (read in comfy/model_detection.py and comfy/ldm/minimax/model.py of ComfyUI 0.33). Released are 50
blocks of width 5376 with 56 heads; here 2 blocks of width 96 with one head. Heads of 128 and 16 rotary frequencies
stay, as rotation needs them.
"""

from __future__ import annotations

import math

import torch

HEAD, ROTARY = 128, 16
WIDTH, FFN, TIME, TIME_IN = 96, 64, 32, 64
BLOCKS, REFINERS = 2, 1
VIDEO, AUDIO = 24 * 4, 32  # latent channels of a 2 x 2 patch; of an audio latent frame


def tiny_dit_weights(text_dim: int) -> dict[str, torch.Tensor]:
    """name -> float32 tensor, the same on every call."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: _random(name, shape, generator) for name, shape in _shapes(text_dim).items()}
    weights["rope.inv_freq"] = 10000.0 ** -(torch.arange(ROTARY) / ROTARY)
    return weights


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    value = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.1 * value
    # gates and shifts of random size, so that every token has a part in the result
    return value * (0.1 if name.endswith("bias") else 1 / math.sqrt(shape[-1]))


def _shapes(text_dim: int) -> dict[str, tuple[int, ...]]:
    linears = {
        "video_patch_proj": (WIDTH, VIDEO), "audio_patch_proj": (WIDTH, AUDIO), "condition_proj": (WIDTH, text_dim),
        "time_embedder.proj_in": (TIME, TIME_IN), "time_embedder.proj_out": (TIME, TIME),
        "final_layer.adaln_proj.linear": (2 * WIDTH, TIME), "final_layer.video_out": (VIDEO, WIDTH),
        "final_layer.audio_out": (AUDIO, WIDTH),
    }  # fmt: skip
    linears |= {f"blocks.{i}.adaln_proj.linear": (6 * 3 * WIDTH, TIME) for i in range(BLOCKS)}
    found = {f"{name}.weight": shape for name, shape in linears.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    found |= {"final_layer.norm.weight": (WIDTH,), "token_refiner.final_norm.weight": (WIDTH,)}
    blocks = [f"blocks.{i}" for i in range(BLOCKS)] + [f"token_refiner.blocks.{i}" for i in range(REFINERS)]
    return found | {f"{block}.{name}.weight": shape for block in blocks for name, shape in _BLOCK.items()}


_BLOCK = {
    "norm1": (WIDTH,), "norm2": (WIDTH,), "attn.qkv_proj": (3 * HEAD, WIDTH), "attn.q_norm": (HEAD,),
    "attn.k_norm": (HEAD,), "attn.out_proj": (WIDTH, HEAD), "mlp.fc1": (2 * FFN, WIDTH), "mlp.fc2": (WIDTH, FFN),
}  # fmt: skip
