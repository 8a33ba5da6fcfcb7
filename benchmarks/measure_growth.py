"""Seconds and memory of one encode of a given size, bf16 weights mapped. Prints one line of JSON.

    measure_growth.py text TOKENS|picture PIXELS FOLDER --layers 1 --tokenizer FOLDER

text: a prompt of TOKENS tokens; picture: one of PIXELS x PIXELS with a short prompt, whose size counts in patches.
`bytes`: peak resident memory during the encode above what was resident before it, with every page of the weights
touched (Linux only, else null).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measure_load import touch
from memory_peak import peak, resident
from peak_memory import restart_peak
from peers import Ours
from shapes import WARM_UP, Shape

SERIES = ("text", "picture")
PATCH = 16  # pixels


def shape_of(series: str, size: int) -> Shape:
    return Shape(size) if series == "text" else Shape(16, ((size, size),))


def measure(series: str, size: int, folder: Path, layers: int, tokenizer: Path) -> dict:
    peer = Ours(folder, layers, tokenizer)
    touch(peer.tensors())
    peer.encode(*WARM_UP.request())
    request = shape_of(series, size).request()
    known, base = restart_peak(), resident()
    started = time.perf_counter()
    ids, _ = peer.encode(*request)
    seconds = time.perf_counter() - started
    counted = len(ids) if series == "text" else (size // PATCH) ** 2
    return {"tokens": counted, "seconds": seconds, "bytes": peak() - base if known else None}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one encode of a given size.")
    parser.add_argument("series", choices=SERIES)
    parser.add_argument("size", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parsed = parser.parse_args()
    print(json.dumps(measure(parsed.series, parsed.size, parsed.folder, parsed.layers, parsed.tokenizer)))


if __name__ == "__main__":
    main()
