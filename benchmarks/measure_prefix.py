"""One edit of a request, encoded fresh and with what the request before it left; or what keeping costs. Prints JSON.

    measure_prefix.py prompt|appended|keeping FOLDER --layers 4 --tokenizer FOLDER --repeats 1

Weights are loaded and every page of them is touched, a small request with a picture runs first. prompt, appended: the
request before the edit is encoded once and kept; then the edited one is timed without a store and with one that holds
just that, taking turns. keeping: the same cold request is timed without a store and with an empty one, taking turns.
`seconds` of "fresh" and "kept" are lists, `decoder` their shares in the decoder; `difference`: relative L2 of the two.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from measure_load import touch
from pack import h3te_module
from peers import Ours
from shapes import KEYFRAME, PROMPT, REFERENCE, WARM_UP, picture, text

BUDGET = 64 * 10**9  # more than any of these requests leaves
SIDES = ("fresh", "kept")
Size = tuple[int, int]


@dataclass(frozen=True)
class Edit:
    """Pictures (width, height) before and after it; another prompt or the same one. None before: nothing is kept."""

    before: tuple[Size, ...] | None
    after: tuple[Size, ...]
    same_prompt: bool = True
    tokens: int = PROMPT

    def request(self, pictures: Sequence[Size], same_prompt: bool = True) -> tuple[str, list]:
        first, *words = text(self.tokens).split()
        prompt = " ".join([first, *(words if same_prompt else reversed(words))])
        reference = h3te_module("encoder").ImageReference
        return prompt, [reference(picture(*size, seed)) for seed, size in enumerate(pictures)]


EDITS = {
    "prompt": Edit((KEYFRAME,) * 2, (KEYFRAME,) * 2, same_prompt=False),
    "appended": Edit((REFERENCE,) * 8, (REFERENCE,) * 9),
    "keeping": Edit(None, (KEYFRAME,) * 2),
}


class Measured:
    """An encoder with its weights in memory, and encodes of it with and without a store."""

    def __init__(self, folder: Path, layers: int, tokenizer: Path):
        self.peer, self.prefixes = Ours(folder, layers, tokenizer), h3te_module("encoder.cache.prefixes")
        touch(self.peer.tensors())
        self.peer.encode(*WARM_UP.request())

    def new_store(self):
        return self.prefixes.PrefixStore(lambda: BUDGET)

    def encode(self, request: tuple[str, list], store=None) -> tuple[object, dict]:
        """The conditioning, seconds and what part of them the decoder took. References one by one on both sides."""
        use = None if store is None else self.prefixes.PrefixUse(store, "bench")
        self.peer.watch.restart()
        started = time.perf_counter()
        done = self.peer.encoder.encode(*request, vision_packing="per_reference", prefixes=use)
        seconds = time.perf_counter() - started
        return done, {"seconds": seconds, "decoder": self.peer.watch.parts(seconds)["decoder"]}


def measure(edit: Edit, folder: Path, layers: int, tokenizer: Path, repeats: int) -> dict:
    of = Measured(folder, layers, tokenizer)
    request, found, last = edit.request(edit.after, edit.same_prompt), {side: [] for side in SIDES}, {}
    for i in range(repeats):
        store = of.new_store()
        if edit.before is not None:
            of.encode(edit.request(edit.before), store)
        for side in SIDES if i % 2 == 0 else reversed(SIDES):
            last[side], times = of.encode(request, store if side == "kept" else None)
            found[side].append(times)
    hidden = {side: done.hidden.float() for side, done in last.items()}
    return {
        "tokens": len(last["kept"].token_ids),
        "reused": last["kept"].reused,
        "held": store.nbytes,
        "difference": float((hidden["kept"] - hidden["fresh"]).norm() / hidden["fresh"].norm()),
        **{name: {side: [t[name] for t in times] for side, times in found.items()} for name in ("seconds", "decoder")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one edit of a request.")
    parser.add_argument("edit", choices=EDITS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parsed = parser.parse_args()
    with torch.no_grad():
        found = measure(EDITS[parsed.edit], parsed.folder, parsed.layers, parsed.tokenizer, parsed.repeats)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
