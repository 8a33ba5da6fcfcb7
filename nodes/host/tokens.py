"""What ComfyUI's nodes call tokens: made by `CLIP.tokenize`, handed back to `CLIP.encode_from_tokens*`.

Contract: `{"qwen3vl_32b": TokenBatch}`, a batch of one row of (id, weight) pairs as other CLIPs return, so that nodes
that count or look at tokens work. The row carries the presentation it was made from, which is what gets encoded;
edited tokens are refused. Two protocols of ComfyUI's H3 nodes are read: `images=[...]` and
`minimax_ref_items=[{"type", "data", "timestamps"}, ...]`; an image's own "timestamp" (seconds) is an extension of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...encoder import AudioReference, ImageReference, VideoReference
from ...encoder.pixels import SAMPLES_PER_SECOND
from ...encoder.presentation import Presentation, Reference, present_each
from ...encoder.tokens import H3Tokenizer, TokenSequence, tokenize
from .cache_status import CacheStatus
from .images import to_rgb_logged
from .preparing import told_each
from .tree import WRAPPER

logger = logging.getLogger(__name__)

WHO = "MiniMax H3 CLIP"
EMBEDDING = "embedding:"  # how ComfyUI names a textual inversion in a prompt
KNOWN = {"images", "minimax_ref_items", "tokenizer_options"}


class TokenBatch(list):
    """One row of (id, 1.0) pairs, plus the `presentation` and `sequence` they come from."""

    def __init__(self, presentation: Presentation, sequence: TokenSequence, word_ids: bool):
        tail = (1.0, 0) if word_ids else (1.0,)
        super().__init__([[(token, *tail) for token in sequence.ids.tolist()]])
        self.presentation = presentation
        self.sequence = sequence
        self.status: CacheStatus | None = None  # what became of it at the last encode; None without caches

    def unchanged(self) -> bool:
        ids = self.sequence.ids.tolist()
        return len(self) == 1 and [(t[0], t[1]) for t in self[0]] == [(token, 1.0) for token in ids]


def make_tokens(text: str, request: Mapping[str, Any], tokenizer: H3Tokenizer, word_ids: bool = False) -> dict:
    """Prompt and the keyword arguments of `CLIP.tokenize` -> tokens. Raises ValueError for what it cannot read."""
    return make_tokens_each([text], request, tokenizer, word_ids)[0]


def make_tokens_each(
    texts: Sequence[str], request: Mapping[str, Any], tokenizer: H3Tokenizer, word_ids: bool = False
) -> list[dict]:
    """The tokens of several prompts with the same references, whose pixels are prepared once."""
    check_texts(texts)
    unknown = sorted(set(request) - KNOWN)
    if unknown:
        logger.warning("%s: %s mean nothing to MiniMax H3 and are ignored.", WHO, ", ".join(unknown))
    if any(EMBEDDING in text for text in texts):
        logger.warning("%s: textual inversions (%s...) are not supported; the name is read as text.", WHO, EMBEDDING)
    presentations = present_each(texts, told_each(references_of(request), "preparing pictures"))
    return [{WRAPPER: TokenBatch(each, tokenize(each, tokenizer), word_ids)} for each in presentations]


def check_texts(texts: Sequence[Any]) -> None:
    """Raises ValueError for a prompt that is no string."""
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(
                f"{WHO}: expected one string as the prompt, got {type(text).__name__}. Connect a STRING or type it."
            )


def references_of(request: Mapping[str, Any]) -> list[Reference]:
    items = request.get("minimax_ref_items")
    if items:
        return [_reference(item, i) for i, item in enumerate(items)]
    images = request.get("images")
    return [_image(data, f"{WHO}, images[{i}]") for i, data in enumerate(() if images is None else images)]


def token_batch(tokens: Any) -> TokenBatch:
    """The batch inside tokens. Raises ValueError for tokens of another CLIP and for edited ones."""
    found = tokens.get(WRAPPER) if isinstance(tokens, Mapping) else None
    if not isinstance(found, TokenBatch):
        got = f"keys {sorted(map(str, tokens))}" if isinstance(tokens, Mapping) else type(tokens).__name__
        raise ValueError(f"{WHO}: expected tokens made by its own tokenize(), got {got}. Tokenize with this CLIP.")
    if not found.unchanged():
        raise ValueError(
            f"{WHO}: expected tokens as tokenize() returned them, got edited ids or weights. "
            "MiniMax H3 has no prompt weights: change the prompt text instead."
        )
    return found


def _reference(item: Mapping[str, Any], index: int) -> Reference:
    where = f"{WHO}, minimax_ref_items[{index}]"
    kind = item.get("type")
    if kind == "image":
        return _image(item["data"], where, item.get("timestamp"))
    if kind == "audio":
        return AudioReference()
    if kind == "video":
        return _video(item["data"], item.get("timestamps"), where)
    raise ValueError(f'{where}: expected type "image", "video" or "audio", got {kind!r}. Update the node that made it.')


def _image(data: Any, where: str, timestamp: float | None = None) -> ImageReference:
    if isinstance(data, Mapping):  # a reference marked for the text encoder alone
        data = data.get("image")
    data = data[None] if getattr(data, "ndim", 4) == 3 else data
    return ImageReference(to_rgb_logged(data[0:1] if data is not None else data, where)[0], timestamp)


def _video(data: Any, timestamps: Sequence[float] | None, where: str) -> VideoReference:
    frames = to_rgb_logged(data, where)
    if timestamps is None:
        timestamps = [i / SAMPLES_PER_SECOND for i in range(len(frames))]
    return VideoReference(frames, timestamps=tuple(timestamps))
