"""One whole encode at the real width by one side, or the floor of its shapes. Prints one line of JSON.

    measure_whole.py ours|official|floor FOLDER prompt|keyframes|references --layers 4 --tokenizer FOLDER [--out HIDDEN]

Weights are loaded and every page of them is touched, a small request with a picture is encoded, then the clock starts.
`seconds`: the median of --repeats; `parts` and `cpu_seconds` (of all threads): of that one; `beyond`: peak resident
memory during the first one above what was resident with the weights touched (Linux only, else null), `warmed` what the
warm-up left of that. Ids and hidden states are written to --out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerator import decoder_floor, tower_floor
from measure_load import touch
from memory_peak import peak, resident
from pack import h3te_module
from peak_memory import restart_peak
from peers import PEERS, Ours
from safetensors.torch import save_file
from shapes import SHAPES, WARM_UP, Shape


def measure(
    what: str, folder: Path, shape: Shape, layers: int, tokenizer: Path, repeats: int, out: Path | None
) -> dict:
    if what == "floor":
        return _floor(Ours(folder, layers, tokenizer), shape, repeats)
    started = time.perf_counter()
    peer = PEERS[what](folder, layers, tokenizer)
    load_seconds, weights = time.perf_counter() - started, touch(peer.tensors())
    base = resident()
    peer.encode(*WARM_UP.request())
    request, timed = shape.request(), []
    known, warmed = restart_peak(), resident()
    for i in range(repeats):
        peer.watch.restart()
        started, worked = time.perf_counter(), time.process_time()
        ids, hidden = peer.encode(*request)
        seconds = time.perf_counter() - started
        timed.append((seconds, time.process_time() - worked, peer.watch.parts(seconds)))
        if i == 0:
            beyond = peak() - base if known else None
    if out is not None:
        save_file({"ids": ids.cpu(), "hidden": hidden.cpu().contiguous()}, out)
    seconds, cpu_seconds, parts = sorted(timed, key=lambda found: found[0])[repeats // 2]
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds, "load_seconds": load_seconds, "parts": parts}
    memory = {"beyond": beyond, "warmed": warmed - base, "peak": peak(), "weights": weights, "loaded": base}
    return {"tokens": len(ids), **times, **memory}


def _floor(peer: Ours, shape: Shape, repeats: int) -> dict:
    touch(peer.tensors())
    encoder = peer.encoder
    tree, config = encoder.model, encoder.config
    peer.encode(*WARM_UP.request())
    frames = [width * height // 256 for width, height in shape.pictures]
    tokens = _tokens(peer, shape)

    def once() -> dict[str, float]:
        parts = {"decoder": decoder_floor(tree.language_model.layers, tokens, config.text.head_dim)}
        if frames:
            parts["vision"], parts["mergers"] = tower_floor(tree.visual, frames, config.vision.num_heads)
        return parts

    parts = _middle(once, repeats)
    return {"seconds": sum(parts.values()), "parts": parts, "tokens": tokens}


def _middle(once: Callable[[], dict[str, float]], repeats: int) -> dict[str, float]:
    return sorted((once() for _ in range(repeats)), key=lambda parts: sum(parts.values()))[repeats // 2]


def _tokens(peer: Ours, shape: Shape) -> int:
    """Of the request, without encoding it."""
    prompt, pictures = shape.request()
    reference, tokenize = h3te_module("encoder").ImageReference, h3te_module("encoder.tokens").tokenize
    return len(tokenize(peer.present(prompt, [reference(pixels) for pixels in pictures]), peer.encoder.tokenizer))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one whole encode.")
    parser.add_argument("what", choices=(*PEERS, "floor"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parsed = parser.parse_args()
    with torch.no_grad():
        found = measure(
            parsed.what,
            parsed.folder,
            SHAPES[parsed.shape],
            parsed.layers,
            parsed.tokenizer,
            parsed.repeats,
            parsed.out,
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
