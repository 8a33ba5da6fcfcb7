"""What no encoder of this model can go below: its matrix products and attention alone, in the order they happen.

Contract: `decoder_floor(layers, tokens)` and `tower_floor(visual, frames)` run F.linear and
scaled_dot_product_attention with the model's own weights, in its dtype and shapes, on random inputs that are ready
beforehand, and return seconds. `layers` and `visual` are modules under the checkpoint's names whose layers have
`weight` and `bias`; frames: patches of each. Nothing else happens: no norm, no rotary, no activation, no residual, no
copy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


def _product(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return F.linear(x, layer.weight.flatten(1), layer.bias)


def _inputs(like: torch.Tensor, rows: int, *widths: int) -> list[torch.Tensor]:
    """Random [rows, width] in the dtype and on the device of `like`."""
    return [torch.randn(rows, width, device=like.device).to(like.dtype) for width in widths]


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """[S, H * Dh] -> the view [1, H, S, Dh] that attention is called with."""
    return x.view(len(x), -1, width).transpose(0, 1)[None]


@torch.no_grad()
def decoder_floor(layers: Sequence[nn.Module], tokens: int, head_dim: int = 128) -> float:
    """Causal attention with grouped key-value heads, and the seven products of every layer."""
    attention, mlp = layers[0].self_attn, layers[0].mlp
    width, query, key = (
        getattr(attention, n).weight.shape[i] for n, i in (("q_proj", 1), ("q_proj", 0), ("k_proj", 0))
    )
    x, attended, gated = _inputs(attention.q_proj.weight, tokens, width, query, mlp.gate_proj.weight.shape[0])
    q, k, v = (_heads(y, head_dim) for y in _inputs(x, tokens, query, key, key))
    started = time.perf_counter()
    for layer in layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            _product(x, getattr(layer.self_attn, name))
        F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
        _product(attended, layer.self_attn.o_proj)
        _product(x, layer.mlp.gate_proj)
        _product(x, layer.mlp.up_proj)
        _product(gated, layer.mlp.down_proj)
    _finish(x)
    return time.perf_counter() - started


@torch.no_grad()
def tower_floor(visual: nn.Module, frames: Sequence[int], heads: int = 16) -> tuple[float, float]:
    """(seconds of patch embedding and blocks, seconds of the mergers). Attention is within each frame."""
    weight, count = visual.patch_embed.proj.weight, sum(frames)
    width, mlp = weight.shape[0], visual.blocks[0].mlp.linear_fc1.weight.shape[0]
    patches, x, wide, qkv = _inputs(weight, count, weight.flatten(1).shape[1], width, mlp, 3 * width)
    views = [[_heads(part, width // heads) for part in frame.split(width, dim=1)] for frame in qkv.split(list(frames))]
    started = time.perf_counter()
    _product(patches, visual.patch_embed.proj)
    for block in visual.blocks:
        _product(x, block.attn.qkv)
        for frame in views:
            F.scaled_dot_product_attention(*frame)
        _product(x, block.attn.proj)
        _product(x, block.mlp.linear_fc1)
        _product(wide, block.mlp.linear_fc2)
    _finish(x)
    between = time.perf_counter()
    merged = x.view(-1, 4 * width)
    for merger in (*visual.deepstack_merger_list, visual.merger):
        _product(merged, merger.linear_fc1)
        _product(merged, merger.linear_fc2)
    _finish(x)
    return between - started, time.perf_counter() - between


def _finish(x: torch.Tensor) -> None:
    """Kernels of an accelerator are awaited."""
    if x.device.type not in ("cpu", "meta"):
        torch.get_device_module(x.device).synchronize()
