"""What an encode gives: hidden states, and what came with them.

Contract: `Conditioning` of `Encoder.encode`, with the prompt's own facts; `EncodedRequest` of ids and patches alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .presentation import Presentation
from .prompt_notes import PromptNote
from .tokens import TokenSequence


@dataclass(frozen=True)
class Conditioning:
    """What H3 is conditioned on. hidden [1, S, D] in compute dtype; token_tags and token_ids int64 [S] on the CPU.

    Tags: 0 for every token of a vision block, markers included; 1 for text. notes: what the prompt says in vain.
    reused: tokens whose layers were not computed, because they were kept or belong to another request of the call.
    seen_before: vision blocks after these whose features were not computed.
    """

    hidden: torch.Tensor
    token_tags: torch.Tensor
    token_ids: torch.Tensor
    sequence: TokenSequence
    presentation: Presentation
    notes: tuple[PromptNote, ...] = ()
    reused: int = 0
    seen_before: int = 0


class EncodedRequest(NamedTuple):
    """hidden [S, D] in compute dtype; reused, seen_before: as of a Conditioning."""

    hidden: torch.Tensor
    reused: int
    seen_before: int
