"""What an encoder read, or would read, with what became of it: what a picture of a presentation is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...encoder.presentation import Presentation
from ...encoder.tokens import TokenSequence

HOSTS_CACHE = "ComfyUI's"  # of a CLIP of its own, which does not say what became of a request


@dataclass(frozen=True, eq=False)
class Shown:
    """cache: for people, what became of the request or would; stages: seconds of each that took time; seconds: of the
    whole encode, None where nothing was encoded; prompts: how many shared them; remark: what else is true of it, ""
    for nothing."""

    presentation: Presentation
    sequence: TokenSequence
    cache: str
    stages: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    prompts: int = 1
    remark: str = ""
