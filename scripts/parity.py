"""Walks a checkpoint layer by layer and compares ours with transformers' own modules, two layers in memory at a time.

    python scripts/parity.py                           demo weights (generated)
    python scripts/parity.py CHECKPOINT                your own file or folder, on the CPU
    python scripts/parity.py CHECKPOINT --against OTHER   and how far OTHER's hidden states are from CHECKPOINT's

`make parity` and `make parity CHECKPOINT=PATH` are the same. Every part (patch embedding, positions, vision blocks,
mergers, decoder layers) runs on the same input as transformers', and both sides run chained from the request on.
Results are written to output/parity/. The exit status is 0 when every error is within its printed limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import command
import layout
import setup

RESULTS = layout.OUTPUT / "parity"


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("parity", lambda: run(parsed, host))


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the encoder with transformers, layer by layer.")
    parser.add_argument(
        "checkpoint", type=Path, nargs="?", help="a .safetensors file or a folder; default: demo weights"
    )
    parser.add_argument("--against", type=Path, metavar="OTHER", help="another checkpoint, compared with the first")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="compute dtype")
    parser.add_argument("--request", default="keyframes", choices=("text", "references", "keyframes"))
    parser.add_argument("--prompt", help="another prompt, with the pictures of --request")
    parser.add_argument("--layers", type=int, default=50, help="only the first so many decoder layers")
    parser.add_argument("--conv3d", action="store_true", help="ours with the released patch convolution: all limits 0")
    return parser.parse_args(arguments)


def run(parsed: argparse.Namespace, host: Path, results: Path = RESULTS) -> int:
    """The whole command; returns the exit status. Raises ValueError or OSError for what cannot be compared."""
    import given_checkpoint
    import parity_plot
    import parity_report

    _check_layers(parsed.layers)
    paths = (parsed.checkpoint, parsed.against)
    first, other = (given_checkpoint.given(path, host, "parity", parsed.layers) if path else None for path in paths)
    first = first or given_checkpoint.demo(host, "parity")
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="parity_") as folder:
        report = walk(parsed, first, other, Path(folder))
    parity_report.write(report, results)
    parity_plot.draw(report, results / "plot.png")
    print(parity_report.closing(report, results), flush=True)
    return 0 if report.passed else 1


def walk(parsed: argparse.Namespace, first, other, folder: Path):
    """Compare and collect. first, other: Checkpoint; other may be None. folder: for the recorded states."""
    import parity_report
    from demo_official import official as official_path
    from memory_peak import MemoryPeak
    from parity_official import OfficialParts
    from parity_parts import States
    from parity_walk import compare_checkpoints, compare_with_official

    started = time.perf_counter()
    request = _request(parsed)
    ours = _ours(parsed, first)
    theirs = _ours(parsed, other) if other else None
    if theirs is not None:
        _check_same_model(ours.encoder, theirs.encoder, other.path)
    official = official_path(first, parsed.layers, ours.encoder.dtype)
    prepared = official.prepare(*request)
    inputs = ours.compare_inputs(prepared, *request)
    print(parity_report.heading(len(prepared.ids), prepared, ours, inputs), flush=True)
    say = parity_report.Progress(started)
    states, other_states = States(folder / "first"), States(folder / "other")
    with MemoryPeak() as peak:
        ours.record(prepared, states, say.recorded("ours, from the request on"))
        if theirs is not None:
            theirs.record(prepared, other_states, say.recorded("the other checkpoint, by ours"))
        rows = compare_with_official(ours, OfficialParts(official), prepared, states, say.row)
    against = list(compare_checkpoints(rows, states, other_states)) if theirs is not None else []
    return parity_report.Report.of(first, other, prepared, ours, inputs, rows, against, peak, started)


def _request(parsed: argparse.Namespace) -> tuple[str, list]:
    import demo_requests

    request = next(r for r in demo_requests.REQUESTS if r.name == parsed.request)
    prompt = request.prompt if parsed.prompt is None else parsed.prompt
    if not prompt and not request.pictures:
        raise ValueError(
            "parity: expected a prompt or pictures, got neither, and transformers has no output for zero tokens. "
            "Give --prompt some text, or use --request references."
        )
    return prompt, demo_requests.references(request)


def _check_layers(layers: int) -> None:
    from pack import h3te_module

    most = h3te_module("encoder").SELECTED_LAYER
    if not 1 <= layers <= most:
        raise ValueError(f"parity: expected --layers from 1 to {most}, got {layers}. Leave it out for all {most}.")


def _ours(parsed: argparse.Namespace, checkpoint):
    import torch
    from parity_ours import OurParts

    dtype = getattr(torch, parsed.dtype)
    return OurParts(
        checkpoint.path, tokenizer=checkpoint.tokenizer, dtype=dtype, layers=parsed.layers, convolution=parsed.conv3d
    )


def _check_same_model(first, other, path: Path) -> None:
    if first.slots.shapes != other.slots.shapes:
        widths = [encoder.config.text.hidden_size for encoder in (first, other)]
        raise ValueError(
            f"parity: expected --against to name another file of the same model, got other shapes in {path.name} "
            f"(hidden sizes {widths[0]} and {widths[1]}). Name two files of the MiniMax H3 text encoder."
        )


if __name__ == "__main__":
    sys.exit(main())
