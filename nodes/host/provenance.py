"""What a conditioning came from, as JSON values for people: what was read, by which encoder, how.

Contract: `facts_of(batch, identity)` goes into the store, into CONDITIONING under `KEY` and so into saved files.
"""

from __future__ import annotations

import time
from typing import Any

from ...encoder.cache.identity import EncoderIdentity
from ...encoder.pack_version import pack_version
from ...encoder.presentation import TextSegment
from ...encoder.prompt_notes import prompt_of
from .tokens import TokenBatch


def facts_of(batch: TokenBatch, identity: EncoderIdentity | None) -> dict[str, Any]:
    """prompt, presentation, parts {name: tokens}; encoder, identity, dtype, vision_packing where known; pack, made."""
    told = {"prompt": prompt_of(batch.presentation), "presentation": presentation_text(batch)}
    told |= {"parts": dict(batch.sequence.counts), "tokens": len(batch.sequence)}
    if identity is not None:
        told |= {"encoder": identity.label, "identity": identity.key, "dtype": identity.dtype}
        told |= {"vision_packing": identity.vision_packing}
    return {**told, "pack": pack_version(), "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}


def presentation_text(batch: TokenBatch) -> str:
    """What the encoder read, as text; a vision block is shown as its size."""
    return "".join(s.text if isinstance(s, TextSegment) else _block(s) for s in batch.presentation.segments)


def _block(segment) -> str:
    height, width = segment.grid_hw
    return f"<|vision_start|>[{segment.modality}, {width}x{height} patches, {segment.pads} tokens]<|vision_end|>"
