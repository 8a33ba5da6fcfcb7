"""Memory of one request, or of several in one pass, from their real token and patch counts, before anything is loaded.

Contract: bytes that the encoder needs beside its resident weights on the compute device, as `memory_required` for
ComfyUI. Of the activations the largest moment counts: a vision block's feed-forward, or a decoder layer's, with what
lives through it; on a CPU one arena serves all moments of a block or layer (encoder/arena.py). All calls of the vision
tower are alive together and each goes through a block in its turn, so that what lives through a block counts for all
of them, and what a block makes for the largest; the same holds for the requests and a decoder layer. Patches that
requests share count once. To the activations come the layers fetched ahead and the largest matrix in use (unpacked,
cast, or with a LoRA); several requests share a layer's matrices, all of which are then there. What oneDNN takes for
products on a CPU: product_memory.py. What the device has: budget.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...encoder import EncoderConfig
from ...encoder.config import TextConfig, VisionConfig
from ...encoder.decoder import text_arena_bytes
from ...encoder.layers import column_blocks
from ...encoder.leaf import Leaf
from ...encoder.packing.packing import CHUNK_ELEMENTS
from ...encoder.pixels import Patches
from ...encoder.presentation import Presentation
from ...encoder.row_blocks import BLOCK_BYTES, DEVICE_BLOCK_BYTES
from ...encoder.vision import vision_arena_bytes
from . import product_memory
from .product_memory import product_bytes

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
    prompts: int = 1

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
    device: torch.device | None = None,
) -> MemoryPlan:
    """Of one request; see `plan_requests`."""
    return plan_requests(config, [presentation], [tokens], dtype, cast, vision_packing, device)


def plan_requests(
    config: EncoderConfig,
    presentations: Sequence[Presentation],
    tokens: Sequence[int],
    dtype: torch.dtype,
    cast: int = 0,
    vision_packing: str = "official",
    device: torch.device | None = None,
) -> MemoryPlan:
    """tokens: of each presentation. cast: bytes of weights beside the resident ones, see `weights_in_use`. device: None
    for an accelerator, which keeps no code and not the results."""
    on_cpu = device is not None and device.type == "cpu"
    images, videos = _distinct(p.image for p in presentations), _distinct(p.video for p in presentations)
    counts = sum(map(_patch_count, images)), sum(map(_patch_count, videos))
    calls = _call_sizes([*images, *videos], vision_packing) if config.vision is not None else []
    sizes = sum(counts), dtype.itemsize, on_cpu
    bare = max(_seeing(config, calls, *sizes), _reading(config, tokens, *sizes))
    if on_cpu:
        results = config.text.hidden_size * (torch.float32.itemsize * sum(tokens) + dtype.itemsize * max(tokens))
        bare = max(bare, results) + _product_bytes(config, calls, tokens, dtype)
    activations = cast + bare + bare // ROUNDED + SMALL
    return MemoryPlan(sum(tokens), counts, activations, cast, len(presentations))


def _seeing(config: EncoderConfig, calls: Sequence[int], patches: int, wide: int, on_cpu: bool) -> int:
    """The vision tower: its largest moment, with the DeepStack features that it has made by then."""
    if not calls:
        return 0
    levels = len(config.vision.deepstack_visual_indexes)
    blocks = vision_bytes(config.vision, patches, wide, max(calls), on_cpu)
    feature = _feature_bytes(config, patches, wide)
    state = config.vision.hidden_size * wide
    between = vision_arena_bytes(config.vision, max(calls), wide) if on_cpu else 2 * max(calls) * state
    return levels * feature + max(blocks, patches * state + feature + between)


def _reading(config: EncoderConfig, tokens: Sequence[int], patches: int, wide: int, on_cpu: bool) -> int:
    """The decoder: its largest moment, and the DeepStack features, which wait to be added."""
    levels = len(config.vision.deepstack_visual_indexes) if config.vision is not None else 0
    features = levels * _feature_bytes(config, patches, wide)
    return features + text_bytes(config.text, sum(tokens), wide, max(tokens), on_cpu)


def _feature_bytes(config: EncoderConfig, patches: int, wide: int) -> int:
    """Of one level."""
    merge = config.vision.spatial_merge_size if config.vision is not None else 1
    return patches // merge**2 * config.text.hidden_size * wide


def _product_bytes(config: EncoderConfig, calls: Sequence[int], tokens: Sequence[int], dtype: torch.dtype) -> int:
    if dtype != torch.bfloat16:
        return 0
    split = column_blocks(max(tokens) * config.text.intermediate_size * dtype.itemsize) > 1
    return product_bytes(calls, tokens, split, product_memory.HERE)


def _distinct(patches: Iterable[Patches | None]) -> list[Patches]:
    return list({id(each): each for each in patches if each is not None}.values())


def _call_sizes(given: Iterable[Patches], vision_packing: str) -> list[int]:
    """Patches of each call of the vision tower; see encoder/encode_pass.py."""
    each = [patches.grid_thw.prod(-1).tolist() for patches in given]
    return [size for sizes in each for size in (sizes if vision_packing == "per_reference" else [sum(sizes)])]


def weights_in_use(
    tree: HostTree,
    device: torch.device,
    patches: Container[str] = (),
    resident: bool = False,
    lend_once: bool = False,
) -> int:
    """What weights need beside the resident ones, once they are mapped: what is fetched ahead, and the matrix in use.

    patches: names of the weights that carry a LoRA. resident: all weights will be on the device, so that none has to be
    fetched (a CPU fetches what its reader streams all the same). lend_once: several requests share each layer's
    matrices.
    """
    leaves = {leaf: name for name, leaf in tree.named_modules() if isinstance(leaf, Leaf)}
    dtype, resident = tree.encoder.dtype, resident and device.type != "cpu"
    working = {leaf: _matrix_bytes(leaf, dtype, f"{name}.weight" in patches) for leaf, name in leaves.items()}
    layers = tree.encoder.model.language_model.layers  # far larger than any part of the vision tower
    if lend_once:
        own = {leaf: _lent_bytes(leaf, dtype, f"{leaves[leaf]}.weight" in patches, device, resident) for leaf in leaves}
        in_use = max((sum(own.get(leaf, 0) for leaf in layer.modules()) for layer in layers), default=0)
        in_use += max((working[leaf] - own[leaf] for leaf in leaves if working[leaf] > own[leaf]), default=0)
    else:
        in_use = max(working.values(), default=0)
    if resident:
        return in_use
    return in_use + PAGES * max((_fetched_bytes(layer, device) for layer in layers), default=0)


def _lent_bytes(leaf: Leaf, dtype: torch.dtype, patched: bool, device: torch.device, resident: bool) -> int:
    """What is held of a leaf while it is lent: its matrix, or a copy on the device."""
    copied = leaf.packing is not None or leaf.weight.dtype != dtype or (patched and leaf.rest is not None)
    if not copied and (resident or device.type == "cpu" or leaf.rest is not None):
        return 0
    return (leaf.weight.numel() if leaf.packing is None else prod(leaf.packing.shape)) * dtype.itemsize


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


def text_bytes(text: TextConfig, tokens: int, wide: int, longest: int | None = None, on_cpu: bool = False) -> int:
    """Peak of one decoder layer for S tokens of all requests; longest: of one, by default all of them. `wide`: bytes
    per activation."""
    longest = tokens if longest is None else longest
    queries, keys = (longest * heads * text.head_dim for heads in (text.num_attention_heads, text.num_key_value_heads))
    hidden, gate = longest * text.hidden_size * wide, longest * text.intermediate_size * wide
    # the float32 copy of queries, and its square, while they are normed; what attention gives
    attended = max(2 * min(_block_bytes(on_cpu), queries * 4), queries * wide)
    multiplied = gate // column_blocks(gate)
    if on_cpu:
        layer = text_arena_bytes(text, longest, wide) + max(2 * keys * wide + attended, hidden + multiplied)
    else:
        attention = hidden + wide * (queries + 2 * keys) + attended
        layer = hidden + max(
            attention, hidden + gate + max(hidden, multiplied)
        )  # it after attention, what is on the way
    rotary = 2 * text.head_dim * wide + 3 * 8
    return tokens * (text.hidden_size * wide + rotary) + layer


def vision_bytes(
    vision: VisionConfig, patches: int, wide: int, largest: int | None = None, on_cpu: bool = False
) -> int:
    """Peak of one vision block, or of the patch embedding, for N patches in all calls; largest: of one call, by default
    all of them."""
    width, head = vision.hidden_size, vision.hidden_size // vision.num_heads
    largest = patches if largest is None else largest
    state = largest * width * wide
    embedding = largest * width * (3 * wide + 4)  # projected, its positions in float32 and cast, their sum
    turned = 3 * min(_block_bytes(on_cpu), largest * width * 4)  # of queries or keys in float32, while they are rotated
    if on_cpu:
        block = vision_arena_bytes(vision, largest, wide) + max(turned, state)  # what attention gives
    else:
        attention = 4 * state + max(turned, 2 * state)  # normed, q, k, v; what comes out, of a call and joined
        block = max(attention, 2 * state + largest * vision.intermediate_size * wide)
    alive = width * wide + 2 * head * 4  # the block's input, the rotary table
    return max(patches * (alive + vision.patch_width * wide) + embedding, patches * alive + block)


def _block_bytes(on_cpu: bool) -> int:
    """Of float32 that element-wise work takes at once (encoder/row_blocks.py)."""
    return BLOCK_BYTES if on_cpu else DEVICE_BLOCK_BYTES


def _patch_count(patches: Patches | None) -> int:
    return 0 if patches is None else len(patches.pixel_values)
