"""Edits of a request as a user makes them in ComfyUI, one after the other, with everything that may fool a cache.

Contract: `edited(seed, steps)` -> `Step`s. Each is what is asked now (prompt, references, weights, LoRA, dtype, how it
is asked) and with which caches. The same seed gives the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

WORDS = ("red", "fox", "old", "owl", "walks", "slowly", "deep", "snow", "under", "pale", "moon", "winter", "night")
SIZES = ((256, 256), (256, 288), (288, 256))
STRENGTHS = (0.0, 0.5, 1.0)
AUTO, NONE, TINY, SMALL = -1.0, 0.0, 0.0003, 0.002  # GB of prefixes; a token takes 10 KB in float32
KEPT = ("ram", "ram and disk", "off")
CLEARED = ("all", "prefixes", "conditioning in RAM", "conditioning on disk")


@dataclass(frozen=True)
class Shown:
    """A reference. kind: "image" or "video"; seed, size: of its pixels; times: seconds of an image or of each frame."""

    kind: str
    seed: int
    size: tuple[int, int]
    times: tuple[float, ...] = ()

    def pixels(self) -> torch.Tensor:
        """IMAGE [B, H, W, 3]; a video's first two frames are the image of its seed."""
        frames = [_frame(self.seed + i // 2, self.size) for i in range(len(self.times) or 1)]
        return torch.stack(frames if self.kind == "video" else frames[:1])

    def item(self) -> dict:
        """Of `minimax_ref_items`."""
        if self.kind == "video":
            return {"type": "video", "data": self.pixels(), "timestamps": list(self.times)}
        return {"type": "image", "data": self.pixels(), **({"timestamp": self.times[0]} if self.times else {})}


def _frame(seed: int, size: tuple[int, int]) -> torch.Tensor:
    values = torch.randint(0, 256, (*size, 3), generator=torch.Generator().manual_seed(seed))
    return values.float() / 255


@dataclass(frozen=True)
class Step:
    """prompts: one is encoded alone, several in one call. file: which weights lie under the one name. as_items: asked
    by minimax_ref_items. prefix_gb, kept, disk_gb, exact: the caches' options. anew: the loader runs again. cleared:
    what the Clear Caches node does before, None for nothing."""

    prompts: tuple[str, ...]
    shown: tuple[Shown, ...] = ()
    file: int = 0
    strength: float = 0.0
    dtype: str = "bfloat16"
    as_items: bool = True
    prefix_gb: float = AUTO
    kept: str = "ram and disk"
    disk_gb: float = 4.0
    exact: bool = False
    anew: bool = True
    cleared: str | None = None

    @property
    def reuses(self) -> bool:
        return not self.exact and self.prefix_gb != NONE

    def asked(self) -> dict:
        """The keyword of `CLIP.tokenize`."""
        if self.as_items or any(each.kind == "video" or each.times for each in self.shown):
            return {"minimax_ref_items": [each.item() for each in self.shown]}
        return {"images": [each.pixels() for each in self.shown]}


def edited(seed: int, steps: int) -> Iterator[Step]:
    chance = random.Random(seed)
    step = Step((" ".join(chance.choices(WORDS, k=40)),), (_new(chance),))
    past = [step]
    for _ in range(steps):
        yield step
        edit = chance.choices([*EDITS], [weight for _, weight in EDITS.values()])[0]
        step = replace(step, prompts=step.prompts[:1], anew=chance.random() < 0.3, cleared=None)
        step = _back(step, chance, past) if edit == "back" else EDITS[edit][0](step, chance)
        past.append(step)


def _new(chance: random.Random) -> Shown:
    kind, seed, size = chance.choice(("image", "image", "video")), chance.randrange(4), chance.choice(SIZES)
    start = chance.choice((0.0, 0.51, 0.52, 3.0))
    times = tuple(start + i / 2 for i in range(chance.choice((2, 4)))) if kind == "video" else ()
    return Shown(kind, seed, size, times or ((start,) if chance.random() < 0.3 else ()))


def _words(step: Step, chance: random.Random) -> Step:
    words = step.prompts[0].split()
    place, word = chance.randrange(len(words) + 1), [chance.choice(WORDS)]
    gone = chance.choice((0, 1, 1))
    words[place : place + gone] = chance.choice((word, word, []))
    return replace(step, prompts=(" ".join(words),))


def _other_prompt(step: Step, chance: random.Random) -> Step:
    return replace(step, prompts=(chance.choice(("", " ", "<Picture 1>: ", " ".join(chance.choices(WORDS, k=40)))),))


def _several(step: Step, chance: random.Random) -> Step:
    others = (_words(step, chance).prompts[0], step.prompts[0], _words(step, chance).prompts[0] + " end")
    return replace(step, prompts=tuple(chance.sample((*step.prompts, *others), 3)))


def _references(step: Step, chance: random.Random) -> Step:
    shown = list(step.shown)
    edit = chance.choice(("append", "append", "remove", "swap", "replace", "size", "time"))
    if edit == "append" and len(shown) < 3:
        shown.append(_new(chance))
    elif edit == "remove" and shown:
        shown.pop(chance.randrange(len(shown)))
    elif edit == "swap":
        chance.shuffle(shown)
    elif shown:
        place = chance.randrange(len(shown))
        old = shown[place]
        changed = {"replace": {"seed": old.seed + 1}, "size": {"size": chance.choice(SIZES)}}
        later = {"times": tuple(time + chance.choice((0.01, 0.5)) for time in old.times)}
        shown[place] = replace(old, **changed.get(edit, later))
    return replace(step, shown=tuple(shown))


def _back(step: Step, chance: random.Random, past: Sequence[Step]) -> Step:
    """To something that was asked before, with the caches of now."""
    old = chance.choice(past[-12:])
    content = {name: getattr(old, name) for name in ("prompts", "shown", "file", "strength", "dtype", "as_items")}
    return replace(step, **content)


def _budgets(step: Step, chance: random.Random) -> Step:
    changed = chance.choice(
        (
            {"prefix_gb": chance.choice((AUTO, NONE, TINY, SMALL))},
            {"kept": chance.choice(KEPT)},
            {"disk_gb": chance.choice((4.0, 0.0001, 0.0))},
        )
    )
    return replace(step, **changed, anew=True)


EDITS = {  # name: (what it does, how often)
    "again": (lambda step, chance: step, 3),
    "back": (None, 5),
    "words": (_words, 8),
    "prompt": (_other_prompt, 3),
    "several": (_several, 3),
    "references": (_references, 7),
    "asked": (lambda step, chance: replace(step, as_items=not step.as_items), 1),
    "file": (lambda step, chance: replace(step, file=1 - step.file, anew=True), 1),
    "lora": (lambda step, chance: replace(step, strength=chance.choice(STRENGTHS)), 2),
    "dtype": (lambda step, chance: replace(step, dtype=chance.choice(("bfloat16", "float32"))), 2),
    "exact": (lambda step, chance: replace(step, exact=not step.exact), 1),
    "clear": (lambda step, chance: replace(step, cleared=chance.choice(CLEARED)), 1),
    "budgets": (_budgets, 2),
    "defaults": (lambda step, chance: replace(step, prefix_gb=AUTO, kept="ram and disk", disk_gb=4.0, exact=False), 2),
}
