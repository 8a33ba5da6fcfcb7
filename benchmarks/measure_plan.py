"""Peak memory of one request at the real width against the plan made for it. Prints one line of JSON.

    measure_plan.py FOLDER SHAPE --layers 2 --tokenizer FOLDER

What is measured is the system's own high-water mark of resident memory during the encode, above what was resident
before it (Linux only, else null): a sample every few milliseconds misses the largest moments of short requests. Weights
are mapped, and all of them were touched before, so that they do not count. `kept`: private memory that is still there
when the result is gone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from memory_peak import peak, private, reset_peak, resident
from pack import h3te_module

WORDS = "a red fox runs through deep snow at dawn while the old harbour sleeps "


def text(words: int) -> str:
    return (WORDS * (words // len(WORDS.split()) + 1))[: words * 5]


def picture(width: int, height: int):
    return h3te_module("encoder").ImageReference(_pixels(height, width))


def video(frames: int, width: int, height: int):
    return h3te_module("encoder").VideoReference(_pixels(frames, height, width), fps=24.0)


def _pixels(*shape: int) -> torch.Tensor:
    return (
        torch.arange(256, dtype=torch.uint8)
        .repeat(-(-3 * torch.Size(shape).numel() // 256))[: 3 * torch.Size(shape).numel()]
        .view(*shape, 3)
    )


SHAPES: dict[str, Callable[[], tuple[str, list]]] = {
    "text, 50 words": lambda: (text(50), []),
    "text, 500 words": lambda: (text(500), []),
    "text, 2000 words": lambda: (text(2000), []),
    "picture 512 x 512": lambda: (text(50), [picture(512, 512)]),
    "picture 1344 x 768, 500 words": lambda: (text(500), [picture(1344, 768)]),
    "two keyframes 1344 x 768": lambda: (text(200), [picture(1344, 768)] * 2),
    "four pictures 512 x 512": lambda: (text(50), [picture(512, 512)] * 4),
    "nine pictures 256 x 256": lambda: (text(50), [picture(256, 256)] * 9),
    "video 49 frames 480 x 272": lambda: (text(50), [video(49, 480, 272)]),
    "picture and video": lambda: (text(100), [picture(864, 480), video(25, 480, 272)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one request against its plan.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parsed = parser.parse_args()
    encoder = h3te_module("encoder").load_encoder(parsed.folder, tap_layer=parsed.layers, tokenizer=parsed.tokenizer)
    encoder.materialise()
    encoder.encode("warm up", [picture(64, 64)])
    prompt, references = SHAPES[parsed.shape]()
    presentation = h3te_module("encoder.presentation").present(prompt, references)
    tokens = len(_touched(encoder, presentation))
    plan_request = h3te_module("nodes.host.memory").plan_request
    plan = plan_request(encoder.config, presentation, tokens, encoder.dtype, device=encoder.device)
    known, first, started = reset_peak(), (resident(), private()), time.perf_counter()
    done = encoder.encode_presentation(presentation)
    seconds, most = time.perf_counter() - started, peak() - first[0]
    del done
    kept = None if first[1] is None else private() - first[1]
    print(json.dumps({"tokens": tokens, "plan": plan.activations, "peak": most if known else None, "kept": kept,
                      "seconds": seconds}))  # fmt: skip


def _touched(encoder, presentation) -> torch.Tensor:
    """The request's ids; their rows of the token table are mapped in afterwards."""
    ids = h3te_module("encoder.tokens").tokenize(presentation, encoder.tokenizer).ids
    encoder.model.language_model.embed_tokens(ids, encoder.device, encoder.dtype)
    return ids


if __name__ == "__main__":
    main()
