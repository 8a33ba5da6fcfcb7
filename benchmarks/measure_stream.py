"""One encode of a packed file by one reader: memory that no file backs, and what came out. Prints one line of JSON.

    measure_stream.py FILE mmap|read|stream --layers 8 --tokenizer FOLDER --out HIDDEN.safetensors

`private` is the peak of memory that no checkpoint file backs, above the process before loading (torch and the pack
imported, the picture prepared). Streaming maps no file, so there it is the system's own peak of resident memory, exact
and a little above; for the other readers anonymous memory is sampled (Linux only, else null). The hidden states are
written to --out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from memory_peak import MemoryPeak, peak, resident
from pack import h3te_module
from safetensors.torch import save_file

PROMPT = "From <Picture 1> on, a red fox runs through deep snow at dawn and says: <d>[English] Follow me!</d>"


def references() -> list:
    """One picture of 256 x 256: 64 tokens."""
    ramp = torch.arange(256, dtype=torch.uint8)
    pixels = torch.stack([ramp.expand(256, 256), ramp[:, None].expand(256, 256), (ramp + ramp[:, None])], dim=-1)
    return [h3te_module("encoder").ImageReference(pixels)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one encode.")
    parser.add_argument("file", type=Path)
    parser.add_argument("reader", choices=("mmap", "read", "stream"))
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    load_encoder, pictures = h3te_module("encoder").load_encoder, references()
    base, started = resident(), time.perf_counter()
    with MemoryPeak() as memory:
        encoder = load_encoder(parsed.file, tap_layer=parsed.layers, tokenizer=parsed.tokenizer, reader=parsed.reader)
        done = encoder.encode(PROMPT, pictures)
    seconds = time.perf_counter() - started
    private = peak() - base if parsed.reader == "stream" else memory.private
    save_file({"hidden": done.hidden.contiguous()}, parsed.out)
    print(json.dumps({"seconds": seconds, "private": private, "resident": memory.resident,
                      "weight_bytes": encoder.weight_bytes, "tokens": len(done.token_ids)}))  # fmt: skip


if __name__ == "__main__":
    main()
