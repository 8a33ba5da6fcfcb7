"""Attention of both halves through torch's scaled_dot_product_attention, never with an S x S mask.

Contract: the decoder is causal with grouped key-value heads; the tower attends within each frame and never across.
The kernel is torch's own choice for the device; attention overrides that other packs install do not reach us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F

GROUPED_DEVICES = ("cpu", "cuda", "meta")  # where torch's kernels take grouped heads; elsewhere keys are repeated
GROUPED_SINCE = (2, 5)  # torch release
PATCHES_A_CALL = 4096  # of several frames together: what a kernel that keeps scores would hold stays bounded


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
    """query, key, value [N, H, Dh]; frame_lengths: patches of each frame, summing to N -> [N, H * Dh]. Frames of one
    length that follow each other share a call."""
    parts, start = [], 0
    for count, length in _calls(frame_lengths):
        rows = slice(start, start + count * length)
        frames = (x[rows].unflatten(0, (count, length)).transpose(1, 2) for x in (query, key, value))  # [F, H, L, Dh]
        parts.append(F.scaled_dot_product_attention(*frames).transpose(1, 2).reshape(count * length, -1))
        start = rows.stop
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _calls(frame_lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(frames, patches of each) per call."""
    for length, group in groupby(frame_lengths):
        frames, most = len(list(group)), max(1, PATCHES_A_CALL // length)
        while frames > 0:
            yield min(frames, most), length
            frames -= most
