"""One checkpoint under budgets of ComfyUI's own patcher, against the encoder without a host. Prints one line of JSON.

    budgets_measure.py CHECKPOINT --host COMFYUI --tokenizer FOLDER [--budgets 0 50 100 all] [--layers N]
        [--reader mmap|read|stream] [--stream-from BYTES] [--size WIDTH HEIGHT] [--rounds N]

A budget is a share of the weights in percent, handed to the patcher's partial loading; "all" is no limit. The CPU
stands in for a device (budgets_device.py): `peak` is private memory during load and encode above the process before
loading (Linux only, else null): what is loaded, what is on its way, unpacked matrices and activations. `seconds` is the
fastest encode of `--rounds`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path

import demo_requests
import torch
from budgets_device import CPU, stand_in_device
from memory_peak import MemoryPeak
from pack import h3te_module

PROMPT = "The rubber duck of <Picture 1>, scarf and all, floats past a lighthouse and says: <d>[English] Ahoy!</d>"
ALL = "all"


def import_host(host: Path) -> None:
    """ComfyUI's modules, on the CPU, quietly."""
    sys.path.insert(0, str(host))
    from comfy.cli_args import args

    args.cpu = True
    import comfy.model_patcher  # noqa: F401

    logging.getLogger().setLevel(logging.WARNING)


def open_clip(path: Path, tokenizer: Path, layers: int, reader: str):
    """A CLIP of the host over the checkpoint, its weights where they rest."""
    clip, leaf, tree = (h3te_module(f"nodes.host.{name}") for name in ("clip", "leaf", "tree"))
    options = {"tap_layer": layers, "tokenizer": tokenizer, "reader": reader, "ops": leaf.HostOps}
    encoder = h3te_module("encoder").load_encoder(path, **options)
    found = clip.H3Clip(clip.make_patcher(tree.HostTree(encoder), CPU, CPU))
    encoder.materialise()
    return found


def request(clip, size: tuple[int, int] | None):
    """The prompt, with a picture of that size."""
    items = []
    if size is not None:
        import numpy as np
        from PIL import Image

        pixels = np.asarray(Image.open(demo_requests.PICTURES / "rubber_duck.jpg").convert("RGB"))
        resized = torch.as_tensor(h3te_module("encoder.geometry").resize(pixels, *size))
        items = [{"type": "image", "data": resized[None].float() / 255}]
    return clip.tokenize(PROMPT, minimax_ref_items=items)["qwen3vl_32b"]


def direct(path: Path, tokenizer: Path, layers: int, presentation) -> torch.Tensor:
    """[1, S, D] without a host, mapped."""
    load = h3te_module("encoder").load_encoder
    return load(path, tap_layer=layers, tokenizer=tokenizer).encode_presentation(presentation).hidden


def measure(path: Path, tokenizer: Path, budgets: list[str], layers: int, reader: str, size, rounds: int) -> dict:
    clip = open_clip(path, tokenizer, layers, reader)
    batch = request(clip, size)
    expected = direct(path, tokenizer, layers, batch.presentation)
    found = {"weights": clip.patcher.model_size(), "tokens": len(batch.sequence), "rows": []}
    for budget in budgets:
        found["rows"].append(_row(clip, batch.presentation, expected, budget, rounds))
    return found


def _row(clip, presentation, expected: torch.Tensor, budget: str, rounds: int) -> dict:
    patcher, times = clip.patcher, []
    limit = None if budget == ALL else int(patcher.model_size() * float(budget) / 100)
    _tidy()
    with stand_in_device():
        with MemoryPeak() as peak:
            started = time.perf_counter()
            patcher.partially_load(CPU, 10**15 if limit is None else limit)
            load_seconds = time.perf_counter() - started
            for _ in range(rounds):
                started = time.perf_counter()
                hidden = clip.encoder.encode_presentation(presentation, device=CPU).hidden
                times.append(time.perf_counter() - started)
        row = {"budget": budget, "limit": limit, "loaded": patcher.loaded_size(), "held": _held(clip)}
        patcher.detach()
    same = torch.equal(hidden, expected)
    return {**row, "same": same, "peak": peak.private, "load_seconds": load_seconds, "seconds": min(times)}


def _held(clip) -> int:
    """Bytes of the parameters that are loaded, counted here; what is offloaded is mapped, or a placeholder."""
    loaded = [m for m in clip.cond_stage_model.modules() if getattr(m, "comfy_patched_weights", False)]
    return sum(p.nbytes for module in loaded for p in module.parameters(recurse=False))


def _tidy() -> None:
    """Memory that is free goes back to the system, so that the next peak begins at what is in use."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one checkpoint under budgets.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--host", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--budgets", nargs="+", required=True)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--reader", default="mmap", choices=("mmap", "read", "stream"))
    parser.add_argument("--stream-from", type=int)
    parser.add_argument("--size", type=int, nargs=2, help="width and height of the picture; none: a prompt alone")
    parser.add_argument("--rounds", type=int, default=1)
    parsed = parser.parse_args()
    import_host(parsed.host)
    if parsed.stream_from is not None:
        h3te_module("encoder.checkpoint.reader").STREAMED_FROM = parsed.stream_from
    arguments = (parsed.checkpoint, parsed.tokenizer, parsed.budgets, parsed.layers, parsed.reader, parsed.size)
    print(json.dumps(measure(*arguments, parsed.rounds)))


if __name__ == "__main__":
    main()
