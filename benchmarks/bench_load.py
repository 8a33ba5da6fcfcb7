"""Loading the needed part of a 14-shard folder and touching every page of it, against transformers' from_pretrained.

transformers gets a config cut to the needed layers, and its base model, which has no lm_head. Bytes are counted with
the files out of the page cache (`read_bytes` of /proc/self/io: what the system fetched for the process, by mapping or
reading alike), time with the files in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from load_folder import make_load_folder
from rounds import GENERATED, median, ratio, run, take_turns
from verdict import Verdict, at_most

CASES = ("mmap", "read", "transformers")  # our two readers that hold weights, and theirs
TIME_LIMIT, BYTES_LIMIT, PEAK_LIMIT = 0.8, 1.01, 1.05


def bench(rounds: int, host: Path) -> Verdict:
    folder = make_load_folder(GENERATED / "load")
    counted = {what: _fetched(folder, what) for what in CASES}
    for file in folder.glob("*.safetensors"):
        _read(file)
    timed = take_turns({what: lambda what=what: run("measure_load.py", what, folder) for what in CASES}, rounds)
    needed = timed["mmap"][0]["bytes"]
    rows = {what: _row(timed[what], timed["transformers"], counted[what], needed) for what in CASES}
    return Verdict("load", _lines(rows, needed), _targets(rows["mmap"]), {"needed_bytes": needed, **rows})


def _row(found: Sequence[dict], theirs: Sequence[dict], counted: dict, needed: int) -> dict:
    return {
        "load_seconds": median(found, "load_seconds"),
        "seconds": median(found, "seconds"),
        "seconds_to_transformers": ratio(found, theirs, "seconds"),
        "peak_to_needed": median(found, "grown") / needed,
        "read_to_needed": counted["read_bytes"] / needed if "read_bytes" in counted else None,
        "cold_seconds": counted["seconds"],
    }


def _targets(ours: dict) -> list[tuple[bool | None, str]]:
    return [
        at_most("load and first touch, to transformers", ours["seconds_to_transformers"], TIME_LIMIT),
        at_most("bytes read, to the needed ones", ours["read_to_needed"], BYTES_LIMIT),
        at_most("peak resident above imported torch, to the needed bytes", ours["peak_to_needed"], PEAK_LIMIT),
    ]


def _lines(rows: dict[str, dict], needed: int) -> list[str]:
    lines = [
        f"50 of 64 layers, {needed / 1e9:.2f} GB needed; page cache warm for the times, cold for the bytes read",
        f"{'':<14}{'load':>8}{'+ touch':>9}{'ratio':>8}{'bytes':>8}{'peak':>8}{'cold':>9}",
    ]
    for what, row in rows.items():
        read = "" if row["read_to_needed"] is None else f"{row['read_to_needed']:.3f}"
        lines.append(
            f"{what:<14}{row['load_seconds']:>7.2f}s{row['seconds']:>8.2f}s{row['seconds_to_transformers']:>8.2f}"
            f"{read:>8}{row['peak_to_needed']:>8.3f}{row['cold_seconds']:>8.1f}s"
        )
    return lines


def _fetched(folder: Path, what: str) -> dict:
    """One load with no page of the folder in memory."""
    for file in folder.glob("*.safetensors"):
        _forget(file)
    return run("measure_load.py", what, folder)


def _forget(file: Path) -> None:
    """Drop the file's pages from the page cache, where the system can be asked to."""
    if hasattr(os, "posix_fadvise"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(file: Path) -> None:
    with file.open("rb", buffering=0) as opened:
        while opened.read(1 << 24):
            pass
