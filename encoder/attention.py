"""Attention of both halves through torch's scaled_dot_product_attention, never with an S x S mask.

Contract: the decoder is causal with grouped key-value heads; the tower attends within each frame and never across.
The kernel is torch's own choice for the device; attention overrides that other packs install do not reach us.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query [S, Hq, Dh], key and value [S, Hkv, Dh] -> [S, Hq * Dh]; scale Dh ** -0.5."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, H, S, Dh]
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=grouped)
    return out[0].transpose(0, 1).reshape(query.shape[0], -1)


def frame_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frame_lengths: Sequence[int]
) -> torch.Tensor:
    """query, key, value [N, H, Dh]; frame_lengths: patches of each frame, summing to N -> [N, H * Dh]."""
    parts = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in frame))[0].transpose(0, 1)
        for frame in zip(*(x.split(list(frame_lengths)) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(parts).reshape(query.shape[0], -1)
