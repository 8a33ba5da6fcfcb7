"""Which CLIPs the encode nodes accept: ours, and ComfyUI's own H3 text encoder; any other is refused by name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import report
from .clip import H3Clip
from .tree import WRAPPER


@dataclass(frozen=True, eq=False)
class Ask:
    """One request. references: `{"images": [...]}` or `{"minimax_ref_items": [...]}`, the keyword of `CLIP.tokenize`;
    asks that hold the very same mapping are presented once."""

    clip: Any
    prompt: str
    references: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Encoded:
    """CONDITIONING, what the encoder read, and lines about the run. `notes`: short memory, a prompt in vain."""

    conditioning: list
    presentation: str
    notes: list[str]
    summary: str
    details: list[str]


def encode_all(asks: Sequence[Ask], node: str) -> list[Encoded]:
    """Tokenize and encode with any H3 CLIP, in the order given."""
    for ask in asks:
        _check(ask.clip, node)
    return [_encode(ask) for ask in asks]


def _encode(ask: Ask) -> Encoded:
    clip = ask.clip
    started = time.perf_counter()
    tokens = clip.tokenize(ask.prompt, **ask.references)
    conditioning = clip.encode_from_tokens_scheduled(tokens)
    summary = report.summary(clip, tokens, time.perf_counter() - started)
    shown = report.presentation_text(tokens)
    notes = report.about_memory(clip) + report.about_prompt(tokens)
    return Encoded(conditioning, shown, notes, summary, report.details(clip, tokens))


def _check(clip: Any, node: str) -> None:
    if isinstance(clip, H3Clip) or hasattr(getattr(clip, "tokenizer", None), WRAPPER):
        return
    model = getattr(clip, "cond_stage_model", None)
    raise ValueError(
        f"{node}: expected a MiniMax H3 text encoder on clip, got {type(clip if model is None else model).__name__}. "
        "Connect Load MiniMax H3 Text Encoder (H3TE), or CLIPLoader with type minimax."
    )
