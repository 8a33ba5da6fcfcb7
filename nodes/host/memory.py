"""Activation memory of one request, from its real token and patch counts, before anything is loaded.

Contract: bytes that the encoder needs beside its weights on the compute device, as `memory_required` for ComfyUI.
The largest moment counts: a vision block's feed-forward, or a decoder layer's, with what lives through it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ...encoder import EncoderConfig
from ...encoder.config import TextConfig, VisionConfig
from ...encoder.leaf import Leaf
from ...encoder.packing.packing import CHUNK_ELEMENTS
from ...encoder.pixels import Patches
from ...encoder.presentation import Presentation

SCRATCH = 24  # bytes for each number of a chunk that is being unpacked: codes, words, scales, float32


@dataclass(frozen=True)
class MemoryPlan:
    """tokens S, patches N per modality and the activation bytes they need."""

    tokens: int
    patches: tuple[int, ...]
    activations: int


def plan_request(
    config: EncoderConfig, presentation: Presentation, tokens: int, dtype: torch.dtype, cast: int = 0
) -> MemoryPlan:
    """cast: bytes that the weight in use needs beside itself, see `unpacking_bytes`."""
    counts = tuple(_patch_count(p) for p in (presentation.image, presentation.video))
    wide = dtype.itemsize
    features = kept = 0
    if config.vision is not None:
        features = max(vision_bytes(config.vision, n, wide) for n in counts)
        levels = 1 + len(config.vision.deepstack_visual_indexes)
        kept = sum(counts) // config.vision.spatial_merge_size**2 * config.text.hidden_size * levels * wide
    return MemoryPlan(tokens, counts, cast + kept + max(features, text_bytes(config.text, tokens, wide)))


def unpacking_bytes(tree: nn.Module, dtype: torch.dtype, patches: Container[str] = ()) -> int:
    """What the largest weight in use needs beside itself. patches: names of the weights that carry a LoRA.

    Packed: the matrix in `dtype`, the numbers of one chunk, and the packed bytes in flight while it is offloaded; with
    a LoRA on it, also the matrix and what is added to it in float32. Plain: its copy, where it is stored in another
    dtype.
    """
    leaves = ((name, leaf) for name, leaf in tree.named_modules() if isinstance(leaf, Leaf))
    return max((_beside(leaf, dtype, f"{name}.weight" in patches) for name, leaf in leaves), default=0)


def _beside(leaf: Leaf, dtype: torch.dtype, patched: bool) -> int:
    tensors = [leaf.weight, *([] if leaf.bias is None else [leaf.bias])]
    if leaf.packing is None:
        return max(t.numel() * dtype.itemsize if t.dtype != dtype else 0 for t in tensors)
    count = prod(leaf.packing.shape)
    matrix = count * dtype.itemsize + (2 * count * torch.float32.itemsize if patched else 0)
    return matrix + leaf.packing.nbytes + CHUNK_ELEMENTS * SCRATCH


def text_bytes(text: TextConfig, tokens: int, wide: int) -> int:
    """Peak of one decoder layer for S tokens; `wide`: bytes per activation."""
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    norm = text.hidden_size * (wide + 8)  # float32 copy and square beside the result
    attention = text.hidden_size * wide + 3 * queries * wide + 4 * keys * wide
    feed_forward = text.hidden_size * wide + 3 * text.intermediate_size * wide
    rotary = 2 * text.head_dim * wide + 3 * 8
    alive = 3 * text.hidden_size * wide  # the embeddings, the layer's input, and it after attention
    return tokens * (alive + rotary + max(norm, attention, feed_forward))


def vision_bytes(vision: VisionConfig, patches: int, wide: int) -> int:
    """Peak of one vision block, or of the patch embedding, for N patches."""
    width, head = vision.hidden_size, vision.hidden_size // vision.num_heads
    embedding = 2 * vision.patch_width * wide + width * (wide + 4 * 5)  # four gathered positions and their sum, float32
    attention = width * wide + 3 * width * wide + 2 * width * 4 + width * wide
    feed_forward = width * wide + 2 * vision.intermediate_size * wide
    alive = (vision.patch_width + 2 * width) * wide  # the patches, the block's input, and it after attention
    return patches * (alive + 2 * head * 4 + max(embedding, attention, feed_forward))


def _patch_count(patches: Patches | None) -> int:
    return 0 if patches is None else len(patches.pixel_values)
