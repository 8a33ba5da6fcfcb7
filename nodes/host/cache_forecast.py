"""What the caches would make of a request that is not encoded: told from the stores, without weights."""

from __future__ import annotations

from typing import Any

from ...encoder.presentation import Presentation
from ...encoder.tokens import TokenSequence


def forecast(clip: Any, presentation: Presentation, sequence: TokenSequence) -> str:
    return "not known"
