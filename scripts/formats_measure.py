"""One checkpoint: what the doctor says of it, load and encode by each reader. Prints one line of JSON.

    formats_measure.py CHECKPOINT --layers 4 --tokenizer FOLDER --hidden OUT [--reference HIDDEN]

Encodes a prompt with a picture in float32, so that what differs from the reference (the bf16 file's hidden states, by
this script) is the weights alone. `private` is the peak of memory that no file backs during load and encode with mapped
weights, above the process before (Linux only, else null). A checkpoint that is refused gives `refused`, in the loader's
words.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from demo_requests import PICTURES
from memory_peak import MemoryPeak
from pack import h3te_module
from safetensors.torch import load_file, save_file

PROMPT = "The rubber duck of <Picture 1>, scarf and all, floats past a lighthouse and says: <d>[English] Ahoy!</d>"
READERS = ("mmap", "read", "stream")


def references() -> list:
    """One picture, 320 x 256: 80 tokens."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(PICTURES / "rubber_duck.jpg").convert("RGB"))
    resize = h3te_module("encoder.geometry").resize
    return [h3te_module("encoder").ImageReference(resize(pixels, 320, 256))]


def doctor(path: Path, layers: int) -> dict:
    started = time.perf_counter()
    report = h3te_module("encoder").inspect_checkpoint(path, layers)
    return {
        "seconds": time.perf_counter() - started,
        "line": report.describe(),
        "layout": report.layout,
        "linears": sorted(report.formats),
        "linears_known": sum(report.formats.values()),
        "embedding": report.embedding_format,
        "awq": report.awq_folded,
        "bytes_needed": report.bytes_needed,
        "problems": list(report.problems),
    }


def encode(path: Path, layers: int, tokenizer: Path, reader: str) -> dict:
    """`hidden` [S, D] float32 with what it took."""
    load_encoder, pictures = h3te_module("encoder").load_encoder, references()
    with MemoryPeak() as memory:
        started = time.perf_counter()
        encoder = load_encoder(path, tap_layer=layers, tokenizer=tokenizer, dtype=torch.float32, reader=reader)
        encoder.load_to_device()
        loaded = time.perf_counter()
        hidden = encoder.encode(PROMPT, pictures).hidden[0]
        done = time.perf_counter()
    return {"hidden": hidden, "load_seconds": loaded - started, "encode_seconds": done - loaded,
            "private": memory.private, "weight_bytes": encoder.weight_bytes}  # fmt: skip


def errors(hidden: torch.Tensor, reference: torch.Tensor) -> dict:
    """Relative L2 of all tokens together, and of the token where it is largest."""
    apart, wanted = (hidden - reference).double(), reference.double()
    by_token = apart.norm(dim=-1) / wanted.norm(dim=-1)
    return {"error": float(apart.norm() / wanted.norm()), "worst_token": float(by_token.max())}


def measure(path: Path, layers: int, tokenizer: Path, out: Path, reference: Path | None) -> dict:
    found: dict = {"doctor": doctor(path, layers)}
    try:
        first = encode(path, layers, tokenizer, READERS[0])
    except ValueError as error:
        return found | {"refused": str(error)}
    hidden = first.pop("hidden")
    save_file({"hidden": hidden.contiguous()}, out)
    found |= first | {"tokens": len(hidden)}
    found["same_bits"] = [
        reader for reader in READERS[1:] if torch.equal(encode(path, layers, tokenizer, reader)["hidden"], hidden)
    ]
    return found | errors(hidden, load_file(reference or out)["hidden"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--hidden", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parsed = parser.parse_args()
    h3te_module("encoder.checkpoint.reader").STREAMED_FROM = 1 << 14  # here, every matrix is a small one
    print(json.dumps(measure(parsed.checkpoint, parsed.layers, parsed.tokenizer, parsed.hidden, parsed.reference)))


if __name__ == "__main__":
    main()
