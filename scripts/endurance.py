"""Endurance: hundreds of mixed prompts in one running ComfyUI, then ComfyUI killed in the middle, then bad disks.

    python scripts/endurance.py                    300 prompts, kills and disks: up to 25 minutes
    python scripts/endurance.py --prompts 60       shorter
    python scripts/endurance.py --only prompts     one part: prompts, kills or disks
    python scripts/endurance.py --seed 7           another mix

`make endurance` is the same. Prompts are of every kind, with budgets, LoRA, Stops, errors, cleared caches and two
checkpoints in turn. PASS: every result equals a fresh encode as docs/caches.md promises, memory at rest grows by less
than 2 % after warm-up, and no handle, thread, process or unfinished file stays. Report and plot: output/endurance/.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import command
import layout
import setup

RESULTS = layout.OUTPUT / "endurance"
PARTS = ("prompts", "kills", "disks")


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("endurance", lambda: run(parsed, host))


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run mixed prompts for long, kill ComfyUI, fill its disk.")
    parser.add_argument("--prompts", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--kills", type=int, default=8, help="how often ComfyUI is killed (default 8)")
    parser.add_argument("--seed", type=int, default=11, help="decides the mix and the moments (default 11)")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    return parser.parse_args(arguments)


def run(parsed: argparse.Namespace, host: Path) -> int:
    """The whole command; returns the exit status."""
    import endurance_disks
    import endurance_kills
    import endurance_report
    import endurance_server

    started = time.monotonic()

    def say(what: str) -> None:
        print(f"  [{time.monotonic() - started:6.1f} s] {what}", flush=True)

    parts: dict[str, Callable] = {
        "prompts": lambda: _prompts(parsed, host, say),
        "kills": lambda: endurance_kills.run(host, parsed.kills, parsed.seed, say),
        "disks": lambda: endurance_disks.run(host, say),
    }
    claims = []
    for name in (parsed.only,) if parsed.only else PARTS:
        endurance_server.prepare(host)
        claims += parts[name]()
    return endurance_report.close(claims, RESULTS, time.monotonic() - started)


def _prompts(parsed: argparse.Namespace, host: Path, say: Callable[[str], None]) -> list:
    import endurance_report
    import endurance_run
    import endurance_server
    import endurance_steps

    checkpoints = endurance_server.prepare(host)
    steps = endurance_steps.plan(parsed.seed, parsed.prompts)
    with endurance_server.server(host) as server:
        endurance_server.upload_pictures(server)
        found = endurance_run.run(server, steps, checkpoints, endurance_server.TEMPORARY, say)
        log, version = server.log(), server.version
    with endurance_server.server(host, "fresh") as server:
        fresh = endurance_server.Fresh(server, checkpoints)
        verdicts = list(endurance_server.judged(found.outcomes, fresh, say))
    facts = {"seed": parsed.seed, "comfyui": version, "fresh encodes": fresh.count}
    return endurance_report.keep(found, verdicts, log, facts, RESULTS)


if __name__ == "__main__":
    sys.exit(main())
