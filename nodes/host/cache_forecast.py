"""What the caches would make of a request that is not encoded: told from the stores, without weights.

Contract: `forecast(...)` is exact where it says something: pictures are told by digests that an encode of this session
made. Of an encoder that nothing is kept of, its checkpoint is not read to find that out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...encoder.cache.expected import with_digests
from ...encoder.presentation import Presentation
from ...encoder.tokens import TokenSequence
from . import caches
from .clip import H3Clip
from .shown import HOSTS_CACHE, Shown

NO_CLIP = "told when a text encoder is connected"
WORKERS = "would be: no hit; prefixes are the worker's"
NEW_PICTURES = "told at the encode: these pictures were not encoded in this session"


def forecast(
    clip: Any, presentation: Presentation, sequence: TokenSequence, digests: Mapping[str, Sequence[bytes]] | None
) -> str:
    """digests: of the vision blocks, None where one is not known."""
    if not isinstance(clip, H3Clip):
        return NO_CLIP if clip is None else HOSTS_CACHE
    if clip.caches is None:
        return "none"
    remote = clip.patcher.model.remote is not None
    if _nothing_kept(clip):
        return WORKERS if remote else "would be: miss"
    if digests is None:
        return NEW_PICTURES
    cache = clip.cache()
    if cache.identity is None:
        return "none"
    status = cache.expected(Shown(with_digests(presentation, digests), sequence, ""))
    return WORKERS if remote and status.hit is None else f"would be: {status.text()}"


def _nothing_kept(clip: H3Clip) -> bool:
    on_disk = clip.caches.on_disk or clip.patcher.model.recorded is not None
    return not on_disk and not caches.prefix_store().nbytes and not caches.conditioning_store().ram_bytes
