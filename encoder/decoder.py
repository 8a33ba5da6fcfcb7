"""The decoder stack up to the tap: embeddings -> hidden states after layer `tap_layer - 1`, without a final norm.

Contract: `Decoder(hidden [S, D], rotary, placements) -> [S, D]`. Parameter names are the released ones below
`model.language_model`. q, k and v are separate products: one packed product changes bf16 rounding. The config may be
that of one rank of several (fewer heads, less of the MLP): o and down are then sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .arena import NO_ARENA, Arena
from .attention import causal_attention
from .config import TextConfig
from .layers import Layers, apply_into, is_own
from .pager import Pager
from .past import Past
from .placement import Placement
from .rope import RotaryTable, apply_rotary
from .token_table import TokenTable


@dataclass
class EmbeddedSequence:
    """One sequence on its way through the layers: hidden [S, D] with the merged features already in place. past: the
    keys and values of what stands before its rows; None where they are a whole sequence that nobody else uses."""

    hidden: torch.Tensor
    rotary: RotaryTable
    placements: Sequence[Placement] = ()
    past: Past | None = None


def text_arena_bytes(config: TextConfig, tokens: int, wide: int) -> int:
    """What a layer lays into the arena for so many tokens of `wide` bytes a number: queries and what they come from, or
    the gate."""
    queries = config.num_attention_heads * config.head_dim + config.hidden_size
    return tokens * wide * max(queries, config.intermediate_size)


class SelfAttention(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.head_dim, self.heads = config.head_dim, config.num_attention_heads
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = layers.linear(config.hidden_size, query_width)
        self.k_proj = layers.linear(config.hidden_size, key_width)
        self.v_proj = layers.linear(config.hidden_size, key_width)
        self.o_proj = layers.linear(query_width, config.hidden_size, summed=True)
        self.q_norm = layers.rms_norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = layers.rms_norm(config.head_dim, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rotary: RotaryTable, past: Past | None = None, arena: Arena = NO_ARENA
    ) -> torch.Tensor:
        """x [S, D] lies behind the queries in the arena, and is overwritten by the result."""
        query = apply_into(self.q_proj, x, arena.view((len(x), self.heads * self.head_dim), x.dtype))
        query, key, value = (y.view(len(x), -1, self.head_dim) for y in (query, self.k_proj(x), self.v_proj(x)))
        query, key = apply_into(self.q_norm, query, query), apply_into(self.k_norm, key, key)
        query, key = apply_rotary(query, rotary, out=query), apply_rotary(key, rotary, out=key)
        if past is not None:
            key, value = past.followed_by(key, value)  # [P + S, Hkv, Dh]
        return apply_into(self.o_proj, causal_attention(query, key, value), arena.overwritten(x))


class MLP(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.intermediate_size = config.intermediate_size
        self.gate_proj = layers.linear(config.hidden_size, config.intermediate_size)
        self.up_proj = layers.linear(config.hidden_size, config.intermediate_size)
        self.down_proj = layers.linear(config.intermediate_size, config.hidden_size, summed=True)

    def forward(self, x: torch.Tensor, arena: Arena = NO_ARENA) -> torch.Tensor:
        """x [S, D] does not lie in the arena, and is overwritten by the result."""
        gate = apply_into(self.gate_proj, x, arena.view((len(x), self.intermediate_size), x.dtype))
        gate = F.silu(gate, inplace=True)  # [S, I]
        gate = self.up_proj(x, into=gate) if is_own(self.up_proj) else gate.mul_(self.up_proj(x))
        if not is_own(self.down_proj):
            return self.down_proj(gate)
        return self.down_proj(gate, out=arena.overwritten(x), consume=True)


class DecoderLayer(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.self_attn = SelfAttention(config, layers)
        self.mlp = MLP(config, layers)
        self.input_layernorm = layers.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = layers.rms_norm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rotary: RotaryTable, past: Past | None = None, arena: Arena = NO_ARENA
    ) -> torch.Tensor:
        """x [S, D] is overwritten where the arena is on."""
        behind = len(x) * self.self_attn.heads * self.self_attn.head_dim * x.element_size()
        place = arena.view(x.shape, x.dtype, behind)
        x = arena.add(x, self.self_attn(apply_into(self.input_layernorm, x, place), rotary, past, arena))
        return arena.add(x, self.mlp(self.post_attention_layernorm(x), arena))


class Decoder(nn.Module):
    """`tap_layer` decoder layers and the token table; layers past the tap are never built."""

    def __init__(self, config: TextConfig, layers: Layers, tap_layer: int):
        super().__init__()
        self.config = config
        self.embed_tokens = TokenTable(config.vocab_size, config.hidden_size, layers.dtype, layers.parallel)
        self.layers = nn.ModuleList(DecoderLayer(config, layers) for _ in range(tap_layer))

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: RotaryTable,
        placements: Sequence[Placement] = (),
        on_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """hidden [S, D] with the merged features already in place."""
        return self.decode([EmbeddedSequence(hidden.clone(), rotary, placements)], on_layer)[0]

    def decode(
        self,
        sequences: Sequence[EmbeddedSequence],
        on_layer: Callable[[int], None] | None = None,
        lend_once: bool = False,
    ) -> list[torch.Tensor]:
        """Several sequences in one pass over the weights; each gives to the bit what it gives alone, in the place of
        its `hidden`. One whose past is that of others comes after them. lend_once: each weight is borrowed and unpacked
        once for all of them."""
        arena = Arena(sequences[0].hidden.device)
        longest, wide = max(len(s.hidden) for s in sequences), sequences[0].hidden.element_size()
        arena.reserve(text_arena_bytes(self.config, longest, wide))
        with Pager([[layer] for layer in self.layers], sequences[0].hidden.device, lend_once) as pager:
            for i, layer in enumerate(self.layers):
                pager.turn_to(i)
                for sequence in sequences:
                    sequence.hidden = layer(sequence.hidden, sequence.rotary, sequence.past, arena)
                    self._add_deepstack(i, sequence)
                if on_layer is not None:
                    on_layer(i)
        return [sequence.hidden for sequence in sequences]

    def _add_deepstack(self, layer: int, sequence: EmbeddedSequence) -> None:
        """Level i is added after layer i. The last layer's own level would be added after
        `hidden_states[tap_layer]` is taken, so it is left out."""
        for place in sequence.placements:
            if layer < min(len(self.layers) - 1, len(place.deepstack)):
                sequence.hidden[place.start : place.stop] += place.rows(place.deepstack[layer])
