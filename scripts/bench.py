"""Speed and memory against others, side by side: each measurement in a process of its own, taking turns, medians.

    python scripts/bench.py              every benchmark
    python scripts/bench.py load unpack  only these
    python scripts/bench.py --rounds 3   fewer rounds
    python scripts/bench.py --table      every target, met or not, from the result files; nothing is measured

`make bench` and `make bench ARGS="load --rounds 3"` are the same. Generated files are kept in .comfyui (`make clean`
deletes them); figures are written to benchmarks/results/, with what matters of the machine, and the table of all
targets to benchmarks/README.md. Close other programs first: the printed load average says whether they were at work.
The exit status is 1 when a target is missed. COMFYUI_PATH with an H3 encoder of its own (0.30 or newer) adds that peer
to `host`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import command
import layout
import setup

NAMES = (
    "load", "unpack", "stream", "plan", "depth", "encode", "host", "growth", "startup", "prefix", "store", "parallel",
    "preview",
)  # fmt: skip


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    sys.path.append(str(layout.ROOT / "benchmarks"))
    if parsed.table:
        return command.status_of("bench", show_targets)
    return command.status_of("bench", lambda: run_all(parsed.names or NAMES, parsed.rounds, host))


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure speed and memory against others.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; none: all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured (5)")
    parser.add_argument("--table", action="store_true", help="only print and write the table of all targets")
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.names if name not in NAMES]
    if unknown or parsed.rounds < 1:
        parser.error(f"expected benchmarks among {', '.join(NAMES)} and at least one round, got {unknown or parsed}")
    return parsed


def run_all(names: Sequence[str], rounds: int, host: Path) -> int:
    """The exit status: 0 when every target of every benchmark is met."""
    met = [run(name, rounds, host) for name in names]  # all of them, though one misses
    show_targets()
    return int(not all(met))


def show_targets() -> int:
    """Print every target of the result files and write them to benchmarks/README.md; 1 when one is missed."""
    import targets

    found = targets.read(NAMES)
    print("\n== every target, as the result files say\n" + "\n".join(f"  {line}" for line in targets.table(found)))
    targets.write(found)
    return int(any(target["met"] is False for of in found.values() for target in of["targets"]))


def run(name: str, rounds: int, host: Path) -> bool:
    """One benchmark: prints and writes what it found; returns whether its targets are met."""
    from machine import load_average

    before, started = load_average(), time.monotonic()
    print(f"\n== {name} (load average before: {before})", flush=True)
    verdict = importlib.import_module(f"bench_{name}").bench(rounds, host)
    written = verdict.write(before).relative_to(layout.ROOT)
    print(f"{verdict.text()}\n  {written} written, {time.monotonic() - started:.0f} s", flush=True)
    return verdict.passed


if __name__ == "__main__":
    sys.exit(main())
