"""What an endurance run does, step by step: a mixed list of prompts that a seed decides.

Contract: `plan(seed, count)` gives the same steps for the same arguments, on any machine. `Step.identity` names what an
encode has to equal: steps of one identity ask for the same conditioning, however it is come by (budget, reader,
caches). Nothing here touches a file or a server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

PROMPTS = (
    "A small sailing boat leaves a quiet harbour at dawn; gulls call.",
    "Night. The lamp finds the boat among the waves, again and again, until the fog swallows both of them.",
    "<Picture 1> drifts slowly into view while the wind rises; the camera follows and says nothing.",
    "An old man waves from the pier: <d>[English] Fair winds!</d> Rope creaks, water laps against the stones.",
    "雪が降る港に、小さな舟がひとつ。",
    "A toy train circles the breakfast table. " * 12,
)
PICTURES = ("rubber_duck.jpg", "lighthouse.jpg", "harbour_dawn.jpg", "harbour_day.jpg", "breakfast.jpg")
CANVASES = ((320, 192), (448, 256), (256, 448), (416, 416))
LARGE = (1344, 768)  # long enough to be stopped in the middle
SIZE_MODES = ("match", "max", "official", "none")
CHECKPOINTS = ("bf16", "nvfp4_awq")
BUDGETS = (0, 10, 25, 50, 90, 100)
LORA = 0.5
REPEATED = 0.5  # of the steps: like the one before
POOL = 40  # distinct requests: small enough that many come again
ERRORS = ("no file", "cut file", "marker", "leads out", "nothing saved", "neither video", "other layer")
KINDS = {"text": 14, "references": 16, "chain": 10, "video": 6, "keyframes": 14, "list": 10}
DOES = {"encode": 58, "preview": 8, "save": 9, "load": 7, "stop": 8, "error": 7, "clear": 3, "free": 2}
CLEARED = ("all", "prefixes", "conditioning in RAM", "conditioning on disk")


@dataclass(frozen=True)
class Request:
    """What is to be encoded. `prompts`: several for a list; `detail`: a size mode, or seconds of a timed picture."""

    kind: str
    prompts: tuple[str, ...]
    pictures: tuple[str, ...] = ()
    canvas: tuple[int, int] = CANVASES[0]
    detail: str = ""


@dataclass(frozen=True)
class Settings:
    """How it is encoded. budget: percent of the weights that the patcher may load; lora: its strength, 0 for none."""

    checkpoint: str = "bf16"
    dtype: str = "bfloat16"
    reader: str = "auto"
    exact: bool = False
    kept: str = "ram"
    prefixes: bool = True
    unload: bool = False
    budget: int = 100
    lora: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether nothing of another prompt is used: such results are equal to the bit."""
        return self.exact or not self.prefixes


@dataclass(frozen=True)
class Step:
    """does: a key of DOES. detail: of an error which one, of a clear what, of a load the number of the step that saved,
    of a stop the share of a second after which it comes."""

    number: int
    does: str
    request: Request
    settings: Settings
    detail: str = ""

    @property
    def identity(self) -> tuple:
        """Of its result. Packing of pictures is part of it: one call for all, or each by itself."""
        of = self.settings
        return self.request, of.checkpoint, of.dtype, of.whole, of.lora


def plan(seed: int, count: int) -> list[Step]:
    """`count` steps. The checkpoint changes about every fifth step; everything else at each."""
    chance = random.Random(seed)
    pool = [_request(chance) for _ in range(POOL)]
    steps: list[Step] = []
    checkpoint = CHECKPOINTS[0]
    for number in range(count):
        if chance.random() < 0.2:
            checkpoint = chance.choice(CHECKPOINTS)
        steps.append(_step(chance, number, pool, checkpoint, steps))
    return steps


def _step(chance: random.Random, number: int, pool: list[Request], checkpoint: str, before: list[Step]) -> Step:
    does = chance.choices(list(DOES), list(DOES.values()))[0]
    saved = [step.number for step in before if step.does == "save"]
    if does == "load" and not saved:
        does = "save"
    request, settings = _next(chance, pool, checkpoint, before)
    detail = ""
    if does == "error":
        detail = chance.choice(ERRORS)
    elif does == "clear":
        detail = chance.choice(CLEARED)
    elif does == "load":
        detail = str(chance.choice(saved))
    elif does == "stop":
        detail = f"{chance.uniform(0.05, 1.5):.3f}"
        request = Request("keyframes", (PROMPTS[0] + f" Take {number}.",), PICTURES[2:4], LARGE)
    elif does == "save" and request.kind == "list":
        request = next(one for one in pool if one.kind != "list")
    return Step(number, does, request, settings, detail)


def _next(chance: random.Random, pool: list[Request], checkpoint: str, before: list[Step]) -> tuple[Request, Settings]:
    """One of the pool, or what came before: again, or with another prompt behind the same pictures. Then only the
    budget is another one, so that the caches can answer."""
    settings = _settings(chance, checkpoint)
    unlike = not before or before[-1].does == "stop" or len(before[-1].request.prompts) > 1
    if unlike or chance.random() > REPEATED:
        return chance.choice(pool), settings
    like, given = before[-1].request, before[-1].settings
    again = given if given.lora else replace(given, budget=settings.budget)
    return (like if chance.random() < 0.4 else replace(like, prompts=(chance.choice(PROMPTS),))), again


def _request(chance: random.Random) -> Request:
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    prompts, canvas = (chance.choice(PROMPTS),), chance.choice(CANVASES)
    if kind == "text":
        return Request(kind, prompts)
    if kind == "keyframes":
        return Request(kind, prompts, tuple(chance.sample(PICTURES, 2)), canvas)
    pictures = tuple(chance.sample(PICTURES, chance.randint(1, 3)))
    if kind == "references":
        return Request(kind, prompts, pictures, canvas, chance.choice(SIZE_MODES))
    if kind == "chain":
        return Request(kind, prompts, pictures, canvas, str(chance.choice((0.0, 1.5, 4.0))))
    if kind == "video":
        return Request(kind, prompts, pictures[:1], canvas)
    return Request(kind, tuple(chance.sample(PROMPTS, 3)), pictures[:2], canvas, "match")


def _settings(chance: random.Random, checkpoint: str) -> Settings:
    """With a LoRA everything else is as it is by default: where a weight is patched decides about its last bits."""
    dtype = "float32" if chance.random() < 0.12 else "bfloat16"
    lora = LORA if chance.random() < 0.1 else 0.0
    settings = Settings(
        checkpoint,
        dtype,
        reader=chance.choice(("auto", "auto", "mmap", "read", "stream")),
        exact=chance.random() < 0.2,
        kept=chance.choice(("ram", "ram and disk", "ram and disk", "off")),
        prefixes=chance.random() < 0.8,
        unload=chance.random() < 0.15,
        budget=chance.choice(BUDGETS),
    )
    plain = Settings(checkpoint, "bfloat16", exact=settings.exact, kept=settings.kept, lora=lora)
    return plain if lora else settings
