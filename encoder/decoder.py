"""The decoder stack up to the tap: embeddings -> hidden states after layer `tap_layer - 1`, without a final norm.

Contract: `Decoder(hidden [S, D], rotary, placements) -> [S, D]`. Parameter names are the released ones below
`model.language_model`. q, k and v are separate products: one packed product changes bf16 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .attention import causal_attention
from .config import TextConfig
from .layers import Layers, TokenTable, is_own
from .pager import Pager
from .past import Past
from .placement import Placement
from .rope import RotaryTable, apply_rotary


@dataclass
class EmbeddedSequence:
    """One sequence on its way through the layers: hidden [S, D] with the merged features already in place. past: the
    keys and values of what stands before its rows; None where they are a whole sequence that nobody else uses."""

    hidden: torch.Tensor
    rotary: RotaryTable
    placements: Sequence[Placement] = ()
    past: Past | None = None


class SelfAttention(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.head_dim = config.head_dim
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = layers.linear(config.hidden_size, query_width)
        self.k_proj = layers.linear(config.hidden_size, key_width)
        self.v_proj = layers.linear(config.hidden_size, key_width)
        self.o_proj = layers.linear(query_width, config.hidden_size)
        self.q_norm = layers.rms_norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = layers.rms_norm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, rotary: RotaryTable, past: Past | None = None) -> torch.Tensor:
        query, key, value = (
            proj(x).view(x.shape[0], -1, self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = apply_rotary(self.q_norm(query), rotary)  # [S, Hq, Dh]
        key = apply_rotary(self.k_norm(key), rotary)  # [S, Hkv, Dh]
        if past is not None:
            key, value = past.followed_by(key, value)  # [P + S, Hkv, Dh]
        return self.o_proj(causal_attention(query, key, value))


class MLP(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.gate_proj = layers.linear(config.hidden_size, config.intermediate_size)
        self.up_proj = layers.linear(config.hidden_size, config.intermediate_size)
        self.down_proj = layers.linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.silu(self.gate_proj(x), inplace=True)  # [S, I]
        gate = self.up_proj(x, into=gate) if is_own(self.up_proj) else gate.mul_(self.up_proj(x))
        return self.down_proj(gate, consume=True) if is_own(self.down_proj) else self.down_proj(gate)


class DecoderLayer(nn.Module):
    def __init__(self, config: TextConfig, layers: Layers):
        super().__init__()
        self.self_attn = SelfAttention(config, layers)
        self.mlp = MLP(config, layers)
        self.input_layernorm = layers.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = layers.rms_norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, rotary: RotaryTable, past: Past | None = None) -> torch.Tensor:
        x = self.self_attn(self.input_layernorm(x), rotary, past).add_(x)
        return self.mlp(self.post_attention_layernorm(x)).add_(x)


class Decoder(nn.Module):
    """`tap_layer` decoder layers and the token table; layers past the tap are never built."""

    def __init__(self, config: TextConfig, layers: Layers, tap_layer: int):
        super().__init__()
        self.config = config
        self.embed_tokens = TokenTable(config.vocab_size, config.hidden_size, layers.dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, layers) for _ in range(tap_layer))

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: RotaryTable,
        placements: Sequence[Placement] = (),
        on_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """hidden [S, D] with the merged features already in place."""
        return self.decode([EmbeddedSequence(hidden, rotary, placements)], on_layer)[0]

    def decode(
        self,
        sequences: Sequence[EmbeddedSequence],
        on_layer: Callable[[int], None] | None = None,
        lend_once: bool = False,
    ) -> list[torch.Tensor]:
        """Several sequences in one pass over the weights; each gives to the bit what it gives alone. One whose past is
        that of others comes after them. lend_once: each weight is borrowed and unpacked once for all of them."""
        with Pager([[layer] for layer in self.layers], sequences[0].hidden.device, lend_once) as pager:
            for i, layer in enumerate(self.layers):
                pager.turn_to(i)
                for sequence in sequences:
                    sequence.hidden = layer(sequence.hidden, sequence.rotary, sequence.past)
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
