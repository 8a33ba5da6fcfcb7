"""Memory of one request, from its real token and patch counts, before anything is loaded.

Contract: bytes that the encoder needs beside its resident weights on the compute device, as `memory_required` for
ComfyUI. Of the activations the largest moment counts: a vision block's feed-forward, or a decoder layer's, with what
lives through it. All calls of the vision tower are alive together and each goes through a block in its turn, so that
what lives through a block counts for all of them, and what a block makes for the largest. To the activations come the
layers fetched ahead and the largest matrix in use (unpacked, cast, or with a LoRA). What the device has: budget.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...encoder import EncoderConfig
from ...encoder.config import TextConfig, VisionConfig
from ...encoder.leaf import Leaf
from ...encoder.packing.packing import CHUNK_ELEMENTS
from ...encoder.pixels import Patches
from ...encoder.presentation import Presentation

if TYPE_CHECKING:
    from .tree import HostTree

LORA_COPIES = 3  # the matrix, the product of up and down, and that times its strength
PAGES = 2  # layers of the pager (encoder/pager.py): the one in use and the one that is coming
ROUNDED, SMALL = 80, 1 << 20  # allocators round up: an 80th more, and a megabyte for what is small
SCRATCH = 24  # bytes for each number of a chunk that is being unpacked: codes, words, scales, float32


@dataclass(frozen=True)
class MemoryPlan:
    """tokens S, patches N per modality and the bytes they need: `activations`, of which `cast` for weights in use."""

    tokens: int
    patches: tuple[int, ...]
    activations: int
    cast: int = 0

    @property
    def bare(self) -> int:
        """Without any weight: less than this cannot do, wherever the weights lie."""
        return self.activations - self.cast


def plan_request(
    config: EncoderConfig,
    presentation: Presentation,
    tokens: int,
    dtype: torch.dtype,
    cast: int = 0,
    vision_packing: str = "official",
) -> MemoryPlan:
    """cast: bytes of weights beside the resident ones, see `weights_in_use`."""
    given = presentation.image, presentation.video
    counts = tuple(_patch_count(patches) for patches in given)
    wide = dtype.itemsize
    features = kept = 0
    if config.vision is not None and any(counts):
        features = vision_bytes(config.vision, sum(counts), wide, max(_call_sizes(given, vision_packing)))
        levels = 1 + len(config.vision.deepstack_visual_indexes)
        kept = sum(counts) // config.vision.spatial_merge_size**2 * config.text.hidden_size * levels * wide
    bare = kept + max(features, text_bytes(config.text, tokens, wide))
    activations = cast + bare + bare // ROUNDED + SMALL
    return MemoryPlan(tokens, counts, activations, cast)


def _call_sizes(given: Iterable[Patches | None], vision_packing: str) -> list[int]:
    """Patches of each call of the vision tower; see encoder/encode_pass.py."""
    each = [patches.grid_thw.prod(-1).tolist() for patches in given if patches is not None]
    return [size for sizes in each for size in (sizes if vision_packing == "per_reference" else [sum(sizes)])]


def weights_in_use(tree: HostTree, device: torch.device, patches: Container[str] = (), resident: bool = False) -> int:
    """What weights need beside the resident ones, once they are mapped: what is fetched ahead, and the matrix in use.

    patches: names of the weights that carry a LoRA. resident: all weights will be on the device, so that none has to be
    fetched (a CPU fetches what its reader streams all the same).
    """
    leaves = ((name, leaf) for name, leaf in tree.named_modules() if isinstance(leaf, Leaf))
    dtype = tree.encoder.dtype
    in_use = max((_matrix_bytes(leaf, dtype, f"{name}.weight" in patches) for name, leaf in leaves), default=0)
    if resident and device.type != "cpu":
        return in_use
    layers = tree.encoder.model.language_model.layers  # far larger than any part of the vision tower
    return in_use + PAGES * max((_fetched_bytes(layer, device) for layer in layers), default=0)


def _matrix_bytes(leaf: Leaf, dtype: torch.dtype, patched: bool) -> int:
    """A copy in `dtype` of what is packed or of another type; with a LoRA on what rests, LORA_COPIES in float32."""
    packing, weight = leaf.packing, leaf.weight
    count = weight.numel() if packing is None else prod(packing.shape)
    cast = count * dtype.itemsize if packing is not None or weight.dtype != dtype else 0
    if packing is None and leaf.rest is None:
        bias = leaf.bias
        return max(cast, 0 if bias is None or bias.dtype == dtype else bias.numel() * dtype.itemsize)
    matrix = LORA_COPIES * count * torch.float32.itemsize if patched else cast
    return matrix + (0 if packing is None else CHUNK_ELEMENTS * SCRATCH)


def _fetched_bytes(layer: nn.Module, device: torch.device) -> int:
    """Of one layer: weights that rest, but for those that are in memory where a CPU computes."""
    leaves = (leaf for leaf in layer.modules() if isinstance(leaf, Leaf) and leaf.rest is not None)
    return sum(_nbytes(leaf.weight) for leaf in leaves if device.type != "cpu" or not leaf.rest.held)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def text_bytes(text: TextConfig, tokens: int, wide: int) -> int:
    """Peak of one decoder layer for S tokens; `wide`: bytes per activation."""
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    norm = text.hidden_size * (wide + 8)  # float32 copy and square beside the result
    attention = text.hidden_size * wide + 3 * queries * wide + 4 * keys * wide
    feed_forward = text.hidden_size * wide + 3 * text.intermediate_size * wide
    rotary = 2 * text.head_dim * wide + 3 * 8
    alive = 3 * text.hidden_size * wide  # the embeddings, the layer's input, and it after attention
    return tokens * (alive + rotary + max(norm, attention, feed_forward))


def vision_bytes(vision: VisionConfig, patches: int, wide: int, largest: int | None = None) -> int:
    """Peak of one vision block, or of the patch embedding, for N patches in all calls; largest: of one call, by default
    all of them."""
    width, head = vision.hidden_size, vision.hidden_size // vision.num_heads
    embedding = vision.patch_width * wide + width * (wide + 4 * 5)  # four gathered positions and their sum, float32
    attention = width * wide + 3 * width * wide + 2 * width * 4 + width * wide
    feed_forward = width * wide + 2 * vision.intermediate_size * wide
    alive = (vision.patch_width + width) * wide + 2 * head * 4  # the patches, the block's input, the rotary table
    block = width * wide + max(embedding, attention, feed_forward)  # it after attention, and what is on the way
    return patches * alive + (patches if largest is None else largest) * block


def _patch_count(patches: Patches | None) -> int:
    return 0 if patches is None else len(patches.pixel_values)
