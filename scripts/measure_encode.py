"""One encode in a process of its own, measured: what was opened, how much memory it took. Prints one line of JSON.

    python scripts/measure_encode.py CHECKPOINT --tokenizer FOLDER [--request text|references|keyframes]
        [--reader mmap|read|stream] [--stream-from BYTES]

Memory in bytes: resident, and `private` (what is not a view of a file; Linux only, else null). The figures that count
are differences to the process before loading, with torch imported and the request's pictures prepared: `copied` is
private memory that loading took, `peak_private` the most during load and encode. `digest` tells results apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import demo_requests
import torch
from memory_peak import MemoryPeak, peak, private, resident
from pack import h3te_module


def _grown(before: int | None) -> int | None:
    return None if before is None else max(0, private() - before)


def measure(checkpoint: Path, tokenizer: Path, request, reader: str = "mmap") -> dict:
    """Load and encode once; figures in bytes and seconds."""
    references = demo_requests.references(request)
    figures = {"base_resident": resident(), "base_peak": peak()}
    with MemoryPeak() as most:
        started = time.perf_counter()
        encoder = h3te_module("encoder").load_encoder(checkpoint, tokenizer=tokenizer, reader=reader)
        opened_before, unloaded = len(encoder.source.opened), private()
        encoder.load_to_device()
        figures |= {"copied": _grown(unloaded), "load_seconds": time.perf_counter() - started}
        started = time.perf_counter()
        done = encoder.encode(request.prompt, references)
        figures["encode_seconds"] = time.perf_counter() - started
    return {
        **figures,
        "tokens": len(done.token_ids),
        "digest": digest(done.hidden),
        "peak": peak(),
        "peak_private": most.private,
        "peak_resident": most.resident,
        "weight_bytes": encoder.weight_bytes,
        "opened_before_first_use": opened_before,
        "opened": sorted({file.name for file in encoder.source.opened}),
        "needed": sorted(file.name for file in encoder.source.catalog.files_needed),
        "unneeded": sorted(file.name for file in encoder.source.catalog.files_unneeded),
    }


def digest(hidden: torch.Tensor) -> str:
    """The same for the same bits and no others."""
    return hashlib.sha256(hidden.cpu().contiguous().view(torch.uint8).numpy()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one encode.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--request", default="keyframes", choices=[r.name for r in demo_requests.REQUESTS])
    parser.add_argument("--reader", default="mmap", choices=("mmap", "read", "stream"))
    parser.add_argument("--stream-from", type=int, help="stream weights of this many bytes and more (default: 1 MiB)")
    parsed = parser.parse_args()
    if parsed.stream_from is not None:
        h3te_module("encoder.checkpoint.reader").STREAMED_FROM = parsed.stream_from
    request = next(r for r in demo_requests.REQUESTS if r.name == parsed.request)
    print(json.dumps(measure(parsed.checkpoint, parsed.tokenizer, request, parsed.reader)))


if __name__ == "__main__":
    main()
