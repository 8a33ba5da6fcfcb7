"""Attention of both halves through torch's scaled_dot_product_attention, never with an S x S mask.

Contract: the decoder is causal with grouped key-value heads; the tower attends within each frame and never across.
The kernel is torch's own choice for the device; attention overrides that other packs install do not reach us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F

GROUPED_DEVICES = ("cpu", "cuda", "meta")  # where torch's kernels take grouped heads; elsewhere keys are repeated
GROUPED_SINCE = (2, 5)  # torch release
MASK_BYTES = 1 << 24  # of one call, where kept keys stand before the query's own: as a truth and as numbers
MASKED_ROWS = 256  # query tokens of one call at most: later ones see more keys, and each call reads them all
PATCHES_A_CALL = 4096  # of several frames together: what a kernel that keeps scores would hold stays bounded


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query [S, Hq, Dh], key and value [P + S, Hkv, Dh] -> [S, Hq * Dh]; scale Dh ** -0.5. The last S keys are the
    query's own, those before them (P, mostly 0) are seen by every token."""
    if len(key) > len(query):
        return _following_attention(query, key, value)
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {}
    if groups > 1 and takes_groups(query.device):
        options = {"enable_gqa": True}
    elif groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))  # [S, Hq, Dh]
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, H, S, Dh]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, **options)
    return out[0].transpose(0, 1).reshape(query.shape[0], -1)


def _following_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """torch's causal kernels align the first query with the first key, so the rows come in blocks with a mask. The
    query heads of a group become rows of one head: no kernel has to know groups, and none repeats keys."""
    groups = query.shape[1] // key.shape[1]
    kept = len(key) - len(query)
    step = max(1, min(MASKED_ROWS, MASK_BYTES // (groups * len(key) * (1 + key.element_size()))))
    out = torch.empty_like(query)
    for start in range(0, len(query), step):
        rows = query[start : start + step]
        k, v = (x[: kept + start + len(rows)].transpose(0, 1)[None] for x in (key, value))  # [1, Hkv, K, Dh]
        q = rows.unflatten(1, (-1, groups)).permute(1, 2, 0, 3).flatten(1, 2)[None]  # [1, Hkv, G * rows, Dh]
        mask = _seen(len(rows), k.shape[2], q.device).repeat(groups, 1) if len(rows) > 1 else None
        part = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].unflatten(1, (groups, -1))
        out[start : start + step] = part.permute(2, 0, 1, 3).flatten(1, 2)  # [rows, Hq, Dh]
    return out.flatten(1)


def _seen(rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """bool [rows, keys]: the last row sees all keys, each row before it one less."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


def takes_groups(device: torch.device) -> bool:
    """Whether scaled_dot_product_attention takes fewer key-value heads than query heads on this device."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return release >= GROUPED_SINCE and device.type in GROUPED_DEVICES


def frame_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    frame_lengths: Sequence[int],
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """query, key, value [N, H, Dh]; frame_lengths: patches of each frame, summing to N -> [N, H * Dh]. Frames of one
    length that follow each other share a call. out: where the result is put; none of the inputs."""
    out = query.new_empty(len(query), query.shape[1] * query.shape[2]) if out is None else out
    start = 0
    for count, length in _calls(frame_lengths):
        rows = slice(start, start + count * length)
        q, k, v = (x[rows].unflatten(0, (count, length)).transpose(1, 2) for x in (query, key, value))  # [F, H, L, Dh]
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)  # [F, L, H, Dh]
        out[rows].view(attended.shape).copy_(attended)
        start = rows.stop
    return out


def _calls(frame_lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(frames, patches of each) per call."""
    for length, group in groupby(frame_lengths):
        frames, most = len(list(group)), max(1, PATCHES_A_CALL // length)
        while frames > 0:
            yield min(frames, most), length
            frames -= most
