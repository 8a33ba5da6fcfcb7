"""Which CLIPs the encode nodes accept: ours, and ComfyUI's own H3 text encoder; any other is refused by name.

Contract: `encode_all(asks, node)` -> what each ask gives, in their order and to the bit what it gives alone. Asks of
the same CLIP of ours share one pass over the weights; ComfyUI's own takes one prompt at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..prompt_lists import told_which
from . import report
from .clip import H3Clip
from .shown import Shown
from .tree import WRAPPER
from .turns import turns

HOSTS_RULE = "drawn as released; ComfyUI's own H3 text encoder sees clips of over 12.5 s at another size"


@dataclass(frozen=True, eq=False)
class Ask:
    """One request. references: `{"images": [...]}` or `{"minimax_ref_items": [...]}`, the keyword of `CLIP.tokenize`;
    asks that hold the very same mapping are presented once. digests: of their vision blocks, for a preview, None where
    they are not known."""

    clip: Any
    prompt: str
    references: Mapping[str, Any]
    digests: Mapping[str, Sequence[bytes]] | None = None


@dataclass(frozen=True, eq=False)
class Encoded:
    """CONDITIONING (None of a preview), what the encoder read, and lines about the run. `notes`: short memory, a prompt
    in vain; `facts`: what it came from, {} for a CLIP of ComfyUI's own; `shown`: for a picture, None where a CLIP of
    ComfyUI's own does not say what it read."""

    conditioning: list | None
    presentation: str
    notes: list[str]
    summary: str
    details: list[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    shown: Shown | None = None
    seconds: float | None = None


def encode_all(asks: Sequence[Ask], node: str) -> list[Encoded]:
    """Tokenize and encode with any H3 CLIP. Raises ValueError naming `node` for another CLIP, and for what ComfyUI's
    own cannot show; of several asks, it says which."""
    for number, ask in enumerate(asks):
        with told_which(number, len(asks)):
            check(ask, node)
    done: dict[int, Encoded] = {}
    for numbers in alike(asks, range(len(asks)), "clip"):
        done |= zip(numbers, _encode(asks, numbers), strict=True)
    return [done[i] for i in range(len(asks))]


def alike(asks: Sequence[Ask], numbers: Sequence[int], name: str) -> list[list[int]]:
    """Those of `numbers` apart whose asks hold the very same object under `name`."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(id(getattr(asks[number], name)), []).append(number)
    return list(found.values())


def _encode(asks: Sequence[Ask], numbers: Sequence[int]) -> list[Encoded]:
    """All of one CLIP."""
    clip, tokens = asks[numbers[0]].clip, _tokens(asks, numbers)
    if len(tokens) == 1 or not isinstance(clip, H3Clip) or not clip.shares_pass():
        with turns(len(tokens), "prompt") as turn:
            return [_alone(clip, each) for each in turn.over(tokens)]
    started = time.perf_counter()
    conditionings = clip.encode_each(tokens)
    seconds = time.perf_counter() - started
    return [_told(clip, t, c, seconds, len(tokens)) for t, c in zip(tokens, conditionings, strict=True)]


def _tokens(asks: Sequence[Ask], numbers: Sequence[int]) -> list[Any]:
    """References that several asks hold are prepared once."""
    clip, made = asks[numbers[0]].clip, {}
    if not isinstance(clip, H3Clip):
        return [_tokens_of(asks, i, asks[i].references) for i in numbers]
    for same in alike(asks, numbers, "references"):
        made |= zip(same, _tokens_each(clip, asks, same), strict=True)
    return [made[i] for i in numbers]


def _tokens_each(clip: H3Clip, asks: Sequence[Ask], numbers: Sequence[int]) -> list[Any]:
    references = asks[numbers[0]].references
    try:
        return clip.tokenize_each([asks[i].prompt for i in numbers], **references)
    except ValueError:
        if len(asks) > 1:
            for given in ({}, references):  # which of them it is: text is quick to try, and pictures are not
                for i in numbers:
                    _tokens_of(asks, i, given)
        raise


def _tokens_of(asks: Sequence[Ask], number: int, references: Mapping[str, Any]) -> Any:
    ask = asks[number]
    with told_which(number, len(asks)):
        return ask.clip.tokenize(ask.prompt, **references)


def _alone(clip: Any, tokens: Any) -> Encoded:
    started = time.perf_counter()
    conditioning = clip.encode_from_tokens_scheduled(tokens)
    return _told(clip, tokens, conditioning, time.perf_counter() - started)


def _told(clip: Any, tokens: Any, conditioning: list, seconds: float, prompts: int = 1) -> Encoded:
    summary = report.summary(clip, tokens, seconds, prompts)
    notes = report.about_memory(clip) + report.about_prompt(tokens)
    facts = report.facts(clip, tokens)
    text, details = report.presentation_text(tokens), report.details(clip, tokens)
    shown = report.shown(clip, tokens, seconds, prompts)
    return Encoded(conditioning, text, notes, summary, details, facts, shown, seconds)


def check(ask: Ask, node: str) -> None:
    """Raises ValueError naming `node` for a CLIP of another model, and for what ComfyUI's own cannot show."""
    clip = ask.clip
    if isinstance(clip, H3Clip):
        return
    if hasattr(getattr(clip, "tokenizer", None), WRAPPER):
        _refuse_timed(ask.references, node)
        return
    model = getattr(clip, "cond_stage_model", None)
    raise ValueError(
        f"{node}: expected a MiniMax H3 text encoder on clip, got {type(clip if model is None else model).__name__}. "
        "Connect Load MiniMax H3 Text Encoder (H3TE), or CLIPLoader with type minimax."
    )


def _refuse_timed(references: Mapping[str, Any], node: str) -> None:
    items = references.get("minimax_ref_items") or ()
    timed = [item["timestamp"] for item in items if item.get("timestamp") is not None]
    if timed:
        raise ValueError(
            f"{node}: expected untimed pictures for ComfyUI's own H3 text encoder on clip, got one at {timed[0]:g} "
            "seconds. Connect Load MiniMax H3 Text Encoder (H3TE), or turn timed off in Reference Image (H3TE)."
        )
