"""One load of a checkpoint folder and the first touch of every page of its weights. Prints one line of JSON.

    measure_load.py mmap|read|transformers FOLDER --layers 50

Imports are over before the clock starts. `read_bytes` is what the system fetched from the disk for this process, and
`rchar` what it asked for by read calls (Linux only, else absent); `base` is what is resident with torch imported,
`peak` the most that ever was, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from memory_peak import peak, resident

PAGE = 4096


def counters() -> dict[str, int]:
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = dict(line.split(": ") for line in lines)
    return {name: int(found[name]) for name in ("rchar", "read_bytes")}


def touch(tensors: Iterable[torch.Tensor]) -> int:
    """Read one byte of every page of every tensor; returns the bytes of them all."""
    total, size = 0, 0
    for tensor in tensors:
        held = tensor.detach().reshape(-1).view(torch.uint8)
        total += int(held[::PAGE].sum())
        size += held.numel()
    return size


def loader(what: str, folder: Path, layers: int):
    """(load, tensors of what it returned), everything imported."""
    if what == "transformers":
        return _transformers(folder, layers)
    from pack import h3te_module

    load_encoder = h3te_module("encoder").load_encoder

    def load():
        encoder = load_encoder(folder, tap_layer=layers, reader=what)
        encoder.load_to_device()
        return encoder

    return load, lambda encoder: [encoder.slots.get(name) for name in encoder.slots.names]


def _transformers(folder: Path, layers: int):
    """The base model: it has no lm_head, and its config is cut to the layers that are needed."""
    from transformers import Qwen3VLConfig
    from transformers.models.qwen3_vl import Qwen3VLModel

    config = Qwen3VLConfig.from_pretrained(folder)
    config.text_config.num_hidden_layers = layers

    def load():
        return Qwen3VLModel.from_pretrained(folder, config=config, dtype=torch.bfloat16, local_files_only=True)

    return load, lambda model: [*model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one load.")
    parser.add_argument("what", choices=("mmap", "read", "transformers"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=50)
    parsed = parser.parse_args()
    base = resident()
    load, tensors_of = loader(parsed.what, parsed.folder, parsed.layers)
    before, started = counters(), time.perf_counter()
    loaded = load()
    load_seconds = time.perf_counter() - started
    size = touch(tensors_of(loaded))
    seconds = time.perf_counter() - started
    read = {name: count - before[name] for name, count in counters().items()}
    found = {"load_seconds": load_seconds, "seconds": seconds, "bytes": size, "base": base, "peak": peak()}
    print(json.dumps({**found, "grown": found["peak"] - base, **read}))


if __name__ == "__main__":
    main()
