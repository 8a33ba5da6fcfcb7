"""The demo's claims about files and memory: what is mapped and opened, what loading copies, what streaming holds.

Contract: as demo_claims. `measured(...)` is one encode in a process of its own (measure_encode.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import layout
from demo_claims import Claim
from demo_requests import KEYFRAMES, DemoRequest
from given_checkpoint import Checkpoint
from pack import h3te_module

COPY_LIMIT = 0.10  # private memory that loading may take, as a share of the weights
READ_OTHERWISE = re.compile(r"H3TE: (weights (?:stay in the file|are read into memory).*)")


def memory_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 3: only needed shards are opened, and loading makes no second copy of the weights."""
    say("Files and memory")
    yield from _mapped_claim(server, checkpoint)
    figures = measured(checkpoint.path, checkpoint.tokenizer)
    extra = sorted(set(figures["opened"]) - set(figures["needed"]))
    passed = not extra and figures["opened_before_first_use"] == 0
    of = len(figures["needed"]) + len(figures["unneeded"])
    figure = f"{len(figures['opened'])} of {of} files opened, none before first use"
    yield Claim(3, "Files that hold nothing needed are not opened", passed, figure if passed else f"opened {extra}")
    yield _copy_claim(figures)
    if checkpoint.is_demo and figures["unneeded"]:
        yield _absent_claim(checkpoint, figures)


def _mapped_claim(server, checkpoint: Checkpoint) -> Iterator[Claim]:
    import psutil

    catalog = h3te_module("encoder.checkpoint.catalog").open_catalog(checkpoint.path, 50)
    try:
        paths = {Path(region.path) for region in psutil.Process(server.process.pid).memory_maps()}
    except (AttributeError, psutil.AccessDenied):
        return  # this system does not tell which files a process maps
    # resolved: a download cache keeps links to files of other names
    unneeded = paths & {file.resolve() for file in catalog.files_unneeded}
    needed = paths & {file.resolve() for file in catalog.files_needed}
    figure = f"{len(needed)} of {len(catalog.files_needed)} needed files mapped, {len(unneeded)} unneeded"
    otherwise = READ_OTHERWISE.search(server.log())  # little free RAM, or Windows
    if otherwise and not needed:
        figure = f"{otherwise[1]}; {len(unneeded)} unneeded files mapped"
    passed = bool(needed or otherwise) and not unneeded
    yield Claim(3, "The running ComfyUI maps needed files only", passed, figure)


def _copy_claim(figures: dict) -> Claim:
    megabytes = {key: value / 1e6 for key, value in figures.items() if isinstance(value, int)}
    peak = megabytes["peak"] - megabytes["base_resident"]
    figure = f"weights {megabytes['weight_bytes']:,.0f} MB; peak above the imported process {peak:,.0f} MB"
    if figures["copied"] is None:
        return Claim(3, "Memory of one encode", True, figure)
    passed = figures["copied"] <= COPY_LIMIT * figures["weight_bytes"]
    figure = f"{figure}; copied {megabytes['copied']:,.1f} MB"
    return Claim(3, "Loading makes no second copy of the weights", passed, figure)


def _absent_claim(checkpoint: Checkpoint, figures: dict) -> Claim:
    folder = layout.TEMP / "needed_only"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint.path, folder, ignore=shutil.ignore_patterns(*figures["unneeded"]))
    try:
        without = measured(folder, checkpoint.tokenizer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    passed = without["digest"] == figures["digest"]
    return Claim(
        3, "It runs with the unneeded shards deleted", passed, f"bit-equal without {', '.join(figures['unneeded'])}"
    )


def measured(path: Path, tokenizer: Path, request: DemoRequest = KEYFRAMES, *options: str) -> dict:
    """One encode in a process of its own. options: further arguments of measure_encode.py."""
    return finished(started(path, tokenizer, request, *options))


def started(path: Path, tokenizer: Path, request: DemoRequest, *options: str) -> subprocess.Popen:
    """Such a process, running; `finished` waits for its figures."""
    script = str(Path(__file__).with_name("measure_encode.py"))
    command = [sys.executable, script, str(path), "--tokenizer", str(tokenizer), "--request", request.name, *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=layout.child_environment(), **pipes)


def finished(process: subprocess.Popen) -> dict:
    with process:
        output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"measure_encode: expected figures, got an error:\n{errors[-2000:]}")
    return json.loads(output.strip().splitlines()[-1])
