"""Attention of both halves through torch's scaled_dot_product_attention, never with an S x S mask.

Contract: the decoder is causal with grouped key-value heads; the tower attends within each frame and never across.
The kernel is torch's own choice for the device; attention overrides that other packs install do not reach us.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

GROUPED_DEVICES = ("cpu", "cuda", "meta")  # where torch's kernels take grouped heads; elsewhere keys are repeated
GROUPED_SINCE = (2, 5)  # torch release


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query [S, Hq, Dh], key and value [S, Hkv, Dh] -> [S, Hq * Dh]; scale Dh ** -0.5."""
    groups = query.shape[1] // key.shape[1]
    options = {}
    if groups > 1 and takes_groups(query.device):
        options = {"enable_gqa": True}
    elif groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))  # [S, Hq, Dh]
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, H, S, Dh]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, **options)
    return out[0].transpose(0, 1).reshape(query.shape[0], -1)


def takes_groups(device: torch.device) -> bool:
    """Whether scaled_dot_product_attention takes fewer key-value heads than query heads on this device."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return release >= GROUPED_SINCE and device.type in GROUPED_DEVICES


def frame_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frame_lengths: Sequence[int]
) -> torch.Tensor:
    """query, key, value [N, H, Dh]; frame_lengths: patches of each frame, summing to N -> [N, H * Dh]."""
    parts = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in frame))[0].transpose(0, 1)
        for frame in zip(*(x.split(list(frame_lengths)) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(parts).reshape(query.shape[0], -1)
