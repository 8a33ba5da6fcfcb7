"""The requests that whole encodes are measured with, by name, the same for every side.

Contract: `SHAPES[name].request()` -> (prompt, pictures): a prompt of `tokens` tokens (every word is one) and uint8
pictures [H, W, 3] of sides that no side resizes. `template`: two references at the size of ComfyUI's templates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORDS = ("A", "red", "fox", "runs", "through", "deep", "snow", "at", "dawn", "while", "the", "old", "city", "sleeps")
PROMPT = 312  # tokens
KEYFRAME, REFERENCE = (1344, 768), (864, 480)  # width, height; `match` keeps a reference that is as large as the target


@dataclass(frozen=True)
class Shape:
    """A prompt of `tokens` tokens behind pictures of these (width, height)."""

    tokens: int
    pictures: tuple[tuple[int, int], ...] = ()

    def request(self) -> tuple[str, list[torch.Tensor]]:
        return text(self.tokens), [picture(*size, seed) for seed, size in enumerate(self.pictures)]


def text(tokens: int) -> str:
    """A text of exactly `tokens` tokens of H3's tokenizer."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))


def picture(width: int, height: int, seed: int = 0) -> torch.Tensor:
    """Random uint8 pixels [H, W, 3], the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


SHAPES = {
    "prompt": Shape(PROMPT),
    "keyframes": Shape(PROMPT, (KEYFRAME,) * 2),
    "references": Shape(PROMPT, (REFERENCE,) * 9),
    "template": Shape(PROMPT, (REFERENCE,) * 2),
}
WARM_UP = Shape(16, ((256, 256),))  # reaches every part of the model
