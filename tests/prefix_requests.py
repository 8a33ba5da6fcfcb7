"""Requests of prefix reuse: small pictures, edits of a request one after the other, and what a fresh encode gives.

Contract: `edits(seed, steps)` -> requests (prompt, references, identity) as a user would change them: words of the
prompt, pictures swapped, appended, removed or of another size, another identity. `fresh` encodes without a store.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from h3te.encoder import ImageReference, VideoReference
from h3te.encoder.cache.prefixes import PrefixStore, PrefixUse
from h3te_tests.golden_cases import clip, pattern

WORDS = ("red", "fox", "old", "owl", "walk", "slowly", "deep", "snow", "under", "pale", "moon", "winter", "night")
SIZES = ((256, 256), (256, 288), (288, 256))
PLENTY = 10**9


def image(seed: int, size: tuple[int, int] = (256, 256)) -> ImageReference:
    return ImageReference(pattern(*size, seed))


def video(seed: int, frames: int = 36) -> VideoReference:
    return VideoReference(clip(frames, 64, 64, seed))


def store(budget: int = PLENTY) -> PrefixStore:
    return PrefixStore(lambda: budget)


def use(kept: PrefixStore, identity: str = "one") -> PrefixUse:
    return PrefixUse(kept, identity)


def fresh(encoder, prompt: str, references=()) -> torch.Tensor:
    return encoder.encode(prompt, references, vision_packing="per_reference").hidden


def edits(seed: int, steps: int) -> Iterator[tuple[str, list, str]]:
    """One request after the other, each an edit of the one before it."""
    chance = random.Random(seed)
    words = chance.choices(WORDS, k=6)
    known = [image(i, chance.choice(SIZES)) for i in range(3)] + [video(3)]
    shown, identity = chance.sample(known, 1), "one"
    for _ in range(steps):
        yield " ".join(words), list(shown), identity
        edit = chance.choice(("word", "word", "append", "swap", "size", "remove", "identity", "again"))
        if edit == "word":
            words[chance.randrange(len(words))] = chance.choice(WORDS)
        elif edit == "append" and len(shown) < 3:
            shown.append(chance.choice(known))
        elif edit == "swap":
            chance.shuffle(shown)
        elif edit == "size":
            shown[-1] = image(chance.randrange(3), chance.choice(SIZES))
        elif edit == "remove" and len(shown) > 1:
            shown.pop(chance.randrange(len(shown)))
        elif edit == "identity":
            identity = chance.choice(("one", "other"))
