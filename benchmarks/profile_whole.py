"""Where the time of a whole encode goes, by torch operation: what an unmet target is explained with. Prints a table.

    python benchmarks/profile_whole.py ours|official prompt|keyframes|references|template [--layers 4] [--rows 20]

Run it in the clone's environment with COMFYUI_PATH, or after `make setup`. Products and attention are the floor; the
rest is element-wise work, copies and memory. Times are of all threads' wall clock, each operation without those it
calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / "scripts"), str(Path(__file__).resolve().parent)]

import torch
from given_checkpoint import bundled_tokenizer
from peers import PEERS
from shapes import SHAPES, WARM_UP, Shape
from wide_files import bf16_folder

FLOOR = ("mm", "addmm", "bmm", "linear", "mkldnn", "scaled_dot_product", "_int_mm")


def profile(peer, shape: Shape) -> list[tuple[str, int, float]]:
    """(operation, calls, seconds of its own), the longest first."""
    request = shape.request()
    peer.encode(*WARM_UP.request())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        peer.encode(*request)
    found = [(of.key, of.count, of.self_cpu_time_total / 1e6) for of in seen.key_averages()]
    return sorted(found, key=lambda of: -of[2])


def is_floor(name: str) -> bool:
    return any(part in name for part in FLOOR)


def table(found: Iterable[tuple[str, int, float]], rows: int) -> list[str]:
    found = list(found)
    whole = sum(seconds for _, _, seconds in found)
    floor = sum(seconds for name, _, seconds in found if is_floor(name))
    lines = [f"{whole:.2f} s, of which products and attention {floor / whole:.1%}, the rest {1 - floor / whole:.1%}"]
    return [
        *lines,
        *(f"{name:<52}{calls:>7}{spent:>9.3f}s{spent / whole:>8.1%}" for name, calls, spent in found[:rows]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Profile one whole encode.")
    parser.add_argument("what", choices=PEERS)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=20)
    parsed = parser.parse_args()
    import preflight
    from layout import PYPI_HOST

    tokenizer = bundled_tokenizer(preflight.foreign_host() or PYPI_HOST)
    with torch.no_grad():
        peer = PEERS[parsed.what](bf16_folder(), parsed.layers, tokenizer)
        print("\n".join(table(profile(peer, SHAPES[parsed.shape]), parsed.rows)))


if __name__ == "__main__":
    main()
