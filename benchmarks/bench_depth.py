"""What packing costs at the released width: hidden states of nvfp4_awq and int8_convrot files against the bf16 ones.

The parity walk (`scripts/parity.py BF16 --against PACKED --layers 4`) does the work: it compares the bf16 folder with
transformers and records the packed file's states by depth. In float32, so that only the weights differ. The packed
files are written from the same random weights and deleted again. Replaces a section of docs/parity.md and its picture.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import depth_section
import layout
import parity
from packed_files import write_packed
from verdict import Verdict, at_most
from wide_files import bf16_folder, tests_module

RESULTS = layout.OUTPUT / "depth"
# A third and more above what was measured; a wrong scale or a forgotten rotation gives 0.5 and more.
LIMITS = {"nvfp4_awq": 0.1, "int8_convrot": 0.01}
REQUEST = ("--request", "keyframes", "--dtype", "float32")


def bench(rounds: int, host: Path) -> Verdict:
    """`rounds` plays no part: there is nothing to time."""
    folder, layers = bf16_folder(), tests_module("wide.wide_weights").LAYERS
    reports = {kind: _walk(folder, kind, layers, host) for kind in LIMITS}
    depth_section.write(reports)
    last = f"layer {layers - 1}"
    errors = {kind: _errors(report) for kind, report in reports.items()}
    targets = [
        at_most(f"{kind}: relative L2 behind {last}", errors[kind][last], limit, "") for kind, limit in LIMITS.items()
    ]
    exact = all(report["passed"] for report in reports.values())
    targets.append((exact, "the bf16 folder is within its limits against transformers"))
    tokens = next(iter(reports.values()))["tokens"]
    return Verdict("depth", depth_section.lines(reports), targets, {"tokens": tokens, "layers": layers, **errors})


def _walk(folder: Path, kind: str, layers: int, host: Path) -> dict:
    """report.json of one walk."""
    scratch, results = layout.TEMP / "depth", RESULTS / kind
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        print(f"  writing {kind} from the bf16 folder", flush=True)
        packed = write_packed(folder, scratch / f"{kind}.safetensors", kind)
        options = ["--layers", str(layers), *REQUEST, "--against", str(packed)]
        parity.run(parity._arguments([str(folder), *options]), host, results)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return json.loads((results / "report.json").read_bytes())


def _errors(report: dict) -> dict[str, float]:
    return {row["part"]: row["relative"] for row in report["against"]}
