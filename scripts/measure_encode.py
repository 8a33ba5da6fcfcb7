"""One encode in a process of its own, measured: what was opened, how much memory it took. Prints one line of JSON.

    python scripts/measure_encode.py CHECKPOINT --tokenizer FOLDER [--request text|references|keyframes]

Memory: resident bytes of the process; `private` is what is not a view of a file (Linux only, else null). The figures
that count are differences to the process before loading, with torch imported and the request's pictures prepared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import demo_requests
import psutil
from pack import h3te_module


def resident() -> int:
    return psutil.Process().memory_info().rss


def private() -> int | None:
    """Bytes of anonymous memory: not backed by a file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _grown(before: int | None) -> int | None:
    return None if before is None else max(0, private() - before)


def peak() -> int:
    """The most that was ever resident."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def measure(checkpoint: Path, tokenizer: Path, request) -> dict:
    """Load and encode once; figures in bytes and seconds."""
    references = demo_requests.references(request)
    base = {"base_resident": resident(), "base_peak": peak()}
    started = time.perf_counter()
    encoder = h3te_module("encoder").load_encoder(checkpoint, tokenizer=tokenizer)
    opened_before, unloaded = len(encoder.source.opened), private()
    encoder.load_to_device()
    loaded = {"copied": _grown(unloaded), "load_seconds": time.perf_counter() - started}
    started = time.perf_counter()
    done = encoder.encode(request.prompt, references)
    return {
        **base,
        **loaded,
        "encode_seconds": time.perf_counter() - started,
        "tokens": len(done.token_ids),
        "peak": peak(),
        "weight_bytes": encoder.weight_bytes,
        "opened_before_first_use": opened_before,
        "opened": sorted({file.name for file in encoder.source.opened}),
        "needed": sorted(file.name for file in encoder.source.catalog.files_needed),
        "unneeded": sorted(file.name for file in encoder.source.catalog.files_unneeded),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one encode.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--request", default="keyframes", choices=[r.name for r in demo_requests.REQUESTS])
    parsed = parser.parse_args()
    request = next(r for r in demo_requests.REQUESTS if r.name == parsed.request)
    print(json.dumps(measure(parsed.checkpoint, parsed.tokenizer, request)))


if __name__ == "__main__":
    main()
