"""How long people wait to see what a request costs: Show Presentation of nine pictures of 4000 x 3000, on one core.

Each repeat in a process of its own, every size mode in it; no checkpoint is there to be read.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rounds import median, run, take_turns
from verdict import Target, Verdict, at_most

LIMIT = 1.0  # seconds


def bench(rounds: int, host: Path) -> Verdict:
    one_core = {"OMP_NUM_THREADS": "1"}
    case = partial(run, "measure_preview.py", "--host", host, environment=one_core)
    found = take_turns({"preview": case}, rounds)["preview"]
    return Verdict("preview", lines(found), targets_of(found), figures(found))


def figures(found: Sequence[dict]) -> dict:
    modes = found[0]["seconds"]
    seconds = {mode: statistics.median(one["seconds"][mode] for one in found) for mode in modes}
    return {"seconds": seconds, "first_seconds": median(found, "first_seconds"), "tokens": found[0]["tokens"]}


def targets_of(found: Sequence[dict]) -> list[Target]:
    seconds = figures(found)["seconds"]
    what = "preview of nine pictures of 4000 x 3000, ref_image_size"
    return [at_most(f"{what} {mode}", taken, LIMIT, " s") for mode, taken in seconds.items()]


def lines(found: Sequence[dict]) -> list[str]:
    of = figures(found)
    told = [f"{mode} {of['seconds'][mode]:.2f} s ({tokens:,} tokens)" for mode, tokens in of["tokens"].items()]
    return [f"nine pictures: {', '.join(told)}; the first of a process {of['first_seconds']:.2f} s"]
