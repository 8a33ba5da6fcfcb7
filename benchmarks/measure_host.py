"""One request in a ComfyUI, by its own H3 encoder or by ours, from the same single file. Prints one line of JSON.

    measure_host.py ours|theirs FILE SHAPE --host COMFYUI --layers 4 --tokenizer FOLDER [--cold] [--out HIDDEN]

Everything is imported before the clock starts. --cold: `cold` is the time from opening the file to the conditioning,
and `warm` that of the same request once more; without it a small request with a picture comes first and only `warm`
is measured. `peak`: the most that was ever resident.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from budgets_measure import import_host
from memory_peak import peak, resident
from own_encoder import SIDES, encode
from pack import h3te_module
from safetensors.torch import save_file
from shapes import SHAPES, WARM_UP, Shape


def measure(side: str, file: Path, shape: Shape, layers: int, tokenizer: Path, cold: bool, out: Path | None) -> dict:
    request, base, found = shape.request(), resident(), {}
    started = time.perf_counter()
    clip = SIDES[side](file, layers, tokenizer)
    encode(clip, *(request if cold else WARM_UP.request()))
    if cold:
        found["cold"] = time.perf_counter() - started
    started = time.perf_counter()
    hidden = encode(clip, *request)
    found["warm"] = time.perf_counter() - started
    if out is not None:
        save_file({"hidden": hidden.float().cpu().contiguous()}, out)
    return {**found, "tokens": len(hidden), "peak": peak(), "base": base}


def import_everything(host: Path) -> None:
    import_host(host)
    import comfy.sd
    import comfy.text_encoders  # noqa: F401

    h3te_module("nodes.host.clip")
    h3te_module("encoder")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one request in a ComfyUI.")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("file", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--host", type=Path, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--out", type=Path)
    parsed = parser.parse_args()
    import_everything(parsed.host)
    shape = SHAPES[parsed.shape]
    with torch.inference_mode():
        found = measure(parsed.side, parsed.file, shape, parsed.layers, parsed.tokenizer, parsed.cold, parsed.out)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
