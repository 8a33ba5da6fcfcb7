"""Measurements side by side: each in a process of its own, taking turns, so that what else the machine does meets all.

Contract: `run(script, *arguments)` -> the JSON that the script's last line prints; `take_turns(cases, rounds)` ->
{case: [JSON of each round]}, the order reversed every second round; `median` and `ratio` of one figure of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import layout

FOLDER = layout.ROOT / "benchmarks"
GENERATED = layout.COMFY / "bench"  # files that a benchmark makes once and keeps
LIMIT_SECONDS = 900
# glibc gives freed memory back at once: otherwise what it keeps for later, by chance, would be measured too
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


def run(
    script: str,
    *arguments: object,
    extra: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit: float = LIMIT_SECONDS,
) -> dict:
    """One measurement; `extra`: a folder with more packages; `environment`: more variables; `limit`: seconds. Raises
    RuntimeError with its last words when it fails."""
    paths = os.pathsep.join(str(folder) for folder in (layout.ROOT / "scripts", FOLDER, extra) if folder)
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    done = subprocess.run(
        command,
        env=layout.child_environment(PYTHONPATH=paths, HF_HUB_OFFLINE="1", **(environment or {})),
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if done.returncode:
        raise RuntimeError(
            f"bench: expected a measurement from `{' '.join(command[1:])}`, got exit status {done.returncode}:\n"
            f"{done.stderr[-1500:]}\nMend what it says and run it again."
        )
    return json.loads(done.stdout.splitlines()[-1])


def take_turns(cases: Mapping[str, Callable[[], dict]], rounds: int) -> dict[str, list[dict]]:
    """Every case once a round; prints a dot for each."""
    found: dict[str, list[dict]] = {name: [] for name in cases}
    for i in range(rounds):
        for name in list(cases) if i % 2 == 0 else reversed(list(cases)):
            found[name].append(cases[name]())
            print(".", end="", flush=True)
    print(flush=True)
    return found


def median(rounds: Sequence[dict], figure: str) -> float:
    return statistics.median(found[figure] for found in rounds)


def ratio(ours: Sequence[dict], theirs: Sequence[dict], figure: str) -> float:
    """The median of the rounds' own ratios: both sides of one ratio were measured next to each other."""
    return statistics.median(a[figure] / b[figure] for a, b in zip(ours, theirs, strict=True))
