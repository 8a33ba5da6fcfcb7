"""The vision tower: patches -> merged features and DeepStack features.

Contract: `VisionTower(patches [N, 1536], grids) -> VisionFeatures(merged [M, D], deepstack 3 x [M, D])`, M = N / 4.
Parameter names are the released ones below `model.visual`. Source: the released Qwen3-VL tower; patches stay in
merge-block order throughout, so that four neighbours in the sequence are one 2 x 2 block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .arena import NO_ARENA, Arena
from .attention import frame_attention
from .config import VisionConfig
from .layers import Layers, apply_into
from .pager import Pager
from .rope import RotaryTable, apply_rotary, interpolation_taps, patch_positions, vision_rotary

gelu_ = torch.ops.aten.gelu_  # torch.nn.functional has no in-place form
Grid = tuple[int, int, int]  # (temporal steps, patch rows, patch columns)


@dataclass(frozen=True)
class VisionFeatures:
    """merged [M, D]: what replaces the pads; deepstack: one [M, D] per tapped block, added after text layers 0, 1,
    2."""

    merged: torch.Tensor
    deepstack: tuple[torch.Tensor, ...]


def join_features(each: Sequence[VisionFeatures]) -> VisionFeatures:
    """Features of several calls, in order, as those of one."""
    if len(each) == 1:
        return each[0]
    levels = zip(*(features.deepstack for features in each), strict=True)
    merged = torch.cat([features.merged for features in each])
    return VisionFeatures(merged, tuple(torch.cat(level) for level in levels))


@dataclass
class _Seen:
    """One call on its way through the blocks: x [N, width], and the merged levels so far."""

    x: torch.Tensor
    rotary: RotaryTable
    frame_lengths: list[int]
    deepstack: list[torch.Tensor]


def vision_arena_bytes(config: VisionConfig, patches: int, wide: int) -> int:
    """What a block lays into the arena for so many patches of `wide` bytes a number: q, k, v and what they come from,
    or what is between the products of its MLP and what that comes from."""
    return patches * wide * max(4 * config.hidden_size, config.intermediate_size + config.hidden_size)


class PatchEmbed(nn.Module):
    def __init__(self, config: VisionConfig, layers: Layers):
        super().__init__()
        kernel = (config.in_channels, config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = layers.patch_projection(config.hidden_size, *kernel)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.proj(patches)


class VisionAttention(nn.Module):
    def __init__(self, config: VisionConfig, layers: Layers):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = layers.linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.proj = layers.linear(config.hidden_size, config.hidden_size, bias=True)

    def forward(
        self, x: torch.Tensor, rotary: RotaryTable, frame_lengths: Sequence[int], arena: Arena = NO_ARENA
    ) -> torch.Tensor:
        """x [N, width] lies behind three of its size in the arena, and is overwritten."""
        qkv = apply_into(self.qkv, x, arena.view((len(x), 3 * x.shape[1]), x.dtype))
        query, key, value = qkv.view(x.shape[0], 3, self.num_heads, -1).unbind(1)  # 3 x [N, H, Dh]
        query, key = (apply_rotary(y, rotary, out=y) for y in (query, key))
        attended = frame_attention(query, key, value, frame_lengths, out=arena.overwritten(x))
        return apply_into(self.proj, attended, arena.view(x.shape, x.dtype))


class VisionMLP(nn.Module):
    def __init__(self, config: VisionConfig, layers: Layers):
        super().__init__()
        self.intermediate_size = config.intermediate_size
        self.linear_fc1 = layers.linear(config.hidden_size, config.intermediate_size, bias=True)
        self.linear_fc2 = layers.linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x: torch.Tensor, arena: Arena = NO_ARENA) -> torch.Tensor:
        """x [N, width] lies behind [N, intermediate] in the arena, and is overwritten by the result."""
        inner = apply_into(self.linear_fc1, x, arena.view((len(x), self.intermediate_size), x.dtype))
        return apply_into(self.linear_fc2, gelu_(inner, approximate="tanh"), arena.overwritten(x))


class VisionBlock(nn.Module):
    def __init__(self, config: VisionConfig, layers: Layers):
        super().__init__()
        self.norm1 = layers.layer_norm(config.hidden_size)
        self.norm2 = layers.layer_norm(config.hidden_size)
        self.attn = VisionAttention(config, layers)
        self.mlp = VisionMLP(config, layers)

    def forward(
        self, x: torch.Tensor, rotary: RotaryTable, frame_lengths: Sequence[int], arena: Arena = NO_ARENA
    ) -> torch.Tensor:
        """x [N, width] is overwritten where the arena is on."""
        behind = 3 * x.nbytes, len(x) * self.mlp.intermediate_size * x.element_size()
        places = [arena.view(x.shape, x.dtype, start) for start in behind]
        x = arena.add(x, self.attn(apply_into(self.norm1, x, places[0]), rotary, frame_lengths, arena))
        return arena.add(x, self.mlp(apply_into(self.norm2, x, places[1]), arena))


class PatchMerger(nn.Module):
    """2 x 2 patches -> one token of text width; DeepStack mergers normalise after the shuffle, the final one before."""

    def __init__(self, config: VisionConfig, layers: Layers, after_shuffle: bool):
        super().__init__()
        self.width = config.merged_width
        self.after_shuffle = after_shuffle
        self.norm = layers.layer_norm(self.width if after_shuffle else config.hidden_size)
        self.linear_fc1 = layers.linear(self.width, self.width, bias=True)
        self.linear_fc2 = layers.linear(self.width, config.out_hidden_size, bias=True)

    def forward(self, x: torch.Tensor, arena: Arena = NO_ARENA) -> torch.Tensor:
        given = x.view(-1, self.width) if self.after_shuffle else x
        x = apply_into(self.norm, given, arena.view(given.shape, x.dtype)).view(-1, self.width)  # [M, 4 * width]
        inner = apply_into(self.linear_fc1, x, arena.view(x.shape, x.dtype, x.nbytes))
        return self.linear_fc2(gelu_(inner))  # [M, D], in memory of its own


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig, layers: Layers):
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config, layers)
        self.pos_embed = layers.position_table(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(VisionBlock(config, layers) for _ in range(config.depth))
        self.merger = PatchMerger(config, layers, after_shuffle=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(config, layers, after_shuffle=True) for _ in config.deepstack_visual_indexes
        )

    def embed(self, patches: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """patches [N, 1536] -> [N, width]: projection plus interpolated positions, summed in float32 until added."""
        x = self.patch_embed(patches)
        side = int(self.config.num_position_embeddings**0.5)
        taps, weights = interpolation_taps(grids, self.config.spatial_merge_size, side, x.device)
        return x + self.pos_embed(x, taps, weights).to(x.dtype)

    def forward(
        self, patches: torch.Tensor, grids: Sequence[Grid], on_block: Callable[[int], None] | None = None
    ) -> VisionFeatures:
        """patches [N, 1536] on the compute device and in compute dtype; on_block(i) is called after each block."""
        return self.see([(patches, grids)], on_block)[0]

    def see(
        self,
        calls: list[tuple[torch.Tensor, Sequence[Grid]]],
        on_block: Callable[[int], None] | None = None,
        lend_once: bool = False,
    ) -> list[VisionFeatures]:
        """Several (patches, grids) in one pass over the weights; each gives to the bit what it gives alone. The list is
        emptied, so that patches are not held through the blocks. lend_once: each weight is borrowed and unpacked once
        for all of them."""
        arena = Arena(calls[0][0].device)
        with Pager(self._pages(), calls[0][0].device, lend_once) as pager:
            pager.turn_to(0)
            states = []
            while calls:
                states.append(self._begun(*calls.pop(0)))
            largest, wide = max(len(state.x) for state in states), states[0].x.element_size()
            arena.reserve(vision_arena_bytes(self.config, largest, wide))
            for i, block in enumerate(self.blocks):
                pager.turn_to(i + 1)
                for state in states:
                    state.x = block(state.x, state.rotary, state.frame_lengths, arena)
                if i in self.config.deepstack_visual_indexes:
                    self._tap(states, arena)
                if on_block is not None:
                    on_block(i)
            pager.turn_to(len(self.blocks) + 1)
            return [VisionFeatures(self.merger(state.x, arena), tuple(state.deepstack)) for state in states]

    def _pages(self) -> list[list[nn.Module]]:
        """What is computed with together: the embedding, each block with the merger that taps it, the last merger."""
        taps = dict(zip(self.config.deepstack_visual_indexes, self.deepstack_merger_list, strict=True))
        blocks = [[block, taps[i]] if i in taps else [block] for i, block in enumerate(self.blocks)]
        return [[self.patch_embed, self.pos_embed], *blocks, [self.merger]]

    def _begun(self, patches: torch.Tensor, grids: Sequence[Grid]) -> _Seen:
        x = self.embed(patches, grids)
        rotary = vision_rotary(patch_positions(grids, self.config.spatial_merge_size), self.config, x.device)
        return _Seen(x, rotary, [h * w for t, h, w in grids for _ in range(t)], [])

    def _tap(self, states: list[_Seen], arena: Arena) -> None:
        for state in states:
            state.deepstack.append(self.deepstack_merger_list[len(state.deepstack)](state.x, arena))
