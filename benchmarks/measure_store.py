"""One request encoded, then answered by the conditioning store, from memory and from disk. Prints one line of JSON.

    measure_store.py FOLDER prompt|keyframes|references --layers 4 --tokenizer FOLDER --store FOLDER

All three begin with the finished presentation (pixels prepared) and end with the conditioning. A hit is tokenising, the
key, and what the store does: from disk reading and verifying every byte, the page cache warm as it is after writing.
Weights are loaded and touched and a small request is encoded before the clock starts; hits are medians of REPEATS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure_load import touch
from pack import h3te_module
from peers import Ours
from shapes import SHAPES, WARM_UP, Shape

REPEATS = 7
BUDGET = 1 << 32


def measure(folder: Path, shape: Shape, layers: int, tokenizer: Path, store_folder: Path) -> dict:
    peer = Ours(folder, layers, tokenizer)
    touch(peer.tensors())
    peer.encode(*WARM_UP.request())
    presentation = presented(peer, shape)
    seconds, done = timed(lambda: peer.encoder.encode_presentation(presentation))
    named, weights = timed(lambda: weights_of(folder))
    identity = h3te_module("encoder.cache.identity").EncoderIdentity(
        weights, "bf16", "bfloat16", layers, "official", "ours"
    )
    ask = Asking(peer.encoder.tokenizer, identity)
    put_seconds = ask.keep(new_store(store_folder), done, peer.encoder.config)
    disk = [timed(lambda: ask(new_store(store_folder), presentation)) for _ in range(REPEATS)]
    warm = new_store(store_folder)
    ask(warm, presentation)
    ram = [timed(lambda: ask(warm, presentation)) for _ in range(REPEATS)]
    found = {"disk": disk, "ram": ram}
    return {
        "tokens": len(done.token_ids),
        "seconds": seconds,
        "hit": {place: statistics.median(took for took, _ in hits) for place, hits in found.items()},
        "put_seconds": put_seconds,
        "weights_identity_seconds": named,
        "equal": all(
            hit is not None and hit[1] == place and hit[0].hidden.equal(done.hidden[0])
            for place, hits in found.items()
            for _, hit in hits
        ),
    }


def timed(call: Callable):
    """(seconds, what it returned)"""
    started = time.perf_counter()
    found = call()
    return time.perf_counter() - started, found


def presented(peer: Ours, shape: Shape):
    prompt, pictures = shape.request()
    reference = h3te_module("encoder").ImageReference
    return peer.present(prompt, [reference(pixels) for pixels in pictures])


def weights_of(folder: Path) -> str:
    return h3te_module("encoder.cache.identity").weights_identity(sorted(folder.glob("*.safetensors")))


def new_store(folder: Path):
    """As a process finds it: nothing in memory."""
    store = h3te_module("encoder.cache.conditioning_store").ConditioningStore
    return store(ram_budget=BUDGET, folder=folder, disk_budget=BUDGET)


class Asking:
    """What stands between a finished presentation and a hit."""

    def __init__(self, tokenizer, identity):
        self.tokenizer, self.identity = tokenizer, identity
        self.tokenize = h3te_module("encoder.tokens").tokenize
        self.request_key = h3te_module("encoder.cache.identity").request_key

    def __call__(self, store, presentation):
        return store.get(self.key(presentation))

    def key(self, presentation) -> str:
        return self.request_key(self.identity, self.tokenize(presentation, self.tokenizer).ids, presentation)

    def keep(self, store, done, config) -> float:
        stored = h3te_module("encoder.cache.conditioning_store").StoredConditioning
        values = h3te_module("encoder.cache.identity_records").config_values(config)
        entry = stored(done.hidden[0], done.token_tags, done.token_ids, {"parts": []})
        return timed(lambda: store.put(self.key(done.presentation), entry, self.identity, values))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an encode and the hits that follow it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parsed = parser.parse_args()
    with torch.no_grad():
        found = measure(parsed.folder, SHAPES[parsed.shape], parsed.layers, parsed.tokenizer, parsed.store)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
