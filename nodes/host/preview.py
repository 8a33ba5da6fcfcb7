"""Prompts and outlines of references -> what the encoder would read of them, without weights and without patches.

Contract: `preview_all(asks, node)` answers as `any_clip.encode_all` does, with no conditioning. No clip at all reads
as MiniMax H3 does, with ComfyUI's own copy of its tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...encoder.presentation_layout import lay_out_each
from ...encoder.prompt_notes import prompt_notes
from ...encoder.tokens import H3Tokenizer, TokenSequence, describe_tokens, tokenize
from ..prompt_lists import told_which
from . import report
from .any_clip import HOSTS_RULE, Ask, Encoded, alike, check
from .cache_forecast import forecast
from .clip import H3Clip
from .outline import blank
from .provenance import presentation_text
from .shown import Shown
from .text_encoder_files import bundled_tokenizer
from .tokens import check_texts, references_of

BLIND = "this checkpoint has no vision tower: an encode refuses pictures; choose a file that has one"


def preview_all(asks: Sequence[Ask], node: str) -> list[Encoded]:
    """Raises ValueError as the encode would for inputs that are wrong; of several asks, it says which."""
    for number, ask in enumerate(asks):
        if ask.clip is not None:
            with told_which(number, len(asks)):
                check(ask, node)
    done: dict[int, Encoded] = {}
    for same in alike(asks, range(len(asks)), "references"):
        done |= zip(same, _preview_same(asks, same), strict=True)
    return [done[i] for i in range(len(asks))]


def _preview_same(asks: Sequence[Ask], numbers: Sequence[int]) -> list[Encoded]:
    """All with the same references, which are laid out once."""
    prompts, references = [asks[i].prompt for i in numbers], asks[numbers[0]].references
    for number, prompt in zip(numbers, prompts, strict=True):
        with told_which(number, len(asks)):
            check_texts([prompt])
    each = lay_out_each(prompts, references_of(references))
    found = []
    for number, presentation in zip(numbers, each, strict=True):
        clip = asks[number].clip
        with told_which(number, len(asks)):
            sequence = tokenize(presentation, tokenizer_of(clip))
        cache = forecast(clip, presentation, sequence, asks[number].digests)
        shown = Shown(presentation, sequence, cache, remark=_remark(clip, sequence))
        found.append(previewed(shown))
    return found


def tokenizer_of(clip: Any) -> H3Tokenizer:
    """A CLIP's own, or the one that comes with ComfyUI."""
    own = clip.encoder.tokenizer if isinstance(clip, H3Clip) else None
    return H3Tokenizer.from_folder(bundled_tokenizer()) if own is None else own


def previewed(shown: Shown) -> Encoded:
    summary = f"preview, nothing encoded: {report.counted(shown.sequence)}; cache: {shown.cache}"
    notes = report.noted(prompt_notes(shown.presentation))
    details = [*([shown.remark] if shown.remark else []), *describe_tokens(shown.presentation, shown.sequence)]
    return Encoded(None, presentation_text(shown), notes, summary, details, shown=shown)


def laid_out(ask: Ask, **facts: Any) -> Shown:
    """What the released model would read where a CLIP does not say what it read; pixels of `ask` are not looked at."""
    (presentation,) = lay_out_each([ask.prompt], references_of(_blanked(ask.references)))
    return Shown(presentation, tokenize(presentation, tokenizer_of(ask.clip)), **facts)


def _remark(clip: Any, sequence: TokenSequence) -> str:
    if isinstance(clip, H3Clip):
        return BLIND if clip.encoder.config.vision is None and sequence.vision_spans else ""
    return "" if clip is None else HOSTS_RULE


def _blanked(references: Mapping[str, Any]) -> Mapping[str, Any]:
    images = {"images": [_blank_of(image) for image in references.get("images") or ()]}
    items = [
        {**item, "data": _blank_of(item["data"])} if "data" in item else item
        for item in references.get("minimax_ref_items") or ()
    ]
    return {"minimax_ref_items": items} if items else images


def _blank_of(image: torch.Tensor) -> torch.Tensor:
    frames, height, width = image.shape[:3]
    return blank(width, height, frames)
