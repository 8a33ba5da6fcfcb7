"""Fuzzes what reads other people's bytes: safetensors and GGUF headers, conditioning files, the worker's protocol.

Coverage-guided, by atheris, ten minutes each (`--minutes 1 --only gguf`); what was reached is kept in output/fuzz/ and
built on by the next run. Inputs that break something lie in output/fuzz/<target>/findings, each with its traceback;
then the exit status is 1. Atheris is installed into .venv by the first run; it has builds for Linux on x86-64 alone.
`make test` runs the same targets with a few hundred inputs and no atheris, on every system.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import layout
from command import status_of
from package_installer import SetupError, drop_cache, install, missing
from setup import enter

TARGETS = ("safetensors_header", "gguf_header", "conditioning_file", "worker_protocol")
RUN = layout.ROOT / "tests" / "fuzz" / "run.py"
FOLDER = layout.OUTPUT / "fuzz"
PACKAGES = layout.REQUIREMENTS / "fuzz.txt"
AGAIN = "python scripts/fuzz.py"
_SPARE_SECONDS = 120  # for imports and the last input
_STEP = re.compile(r"^#(\d+)\s.*\bcov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """One target's figures. problem: why it did not run to its end, "" where it did."""

    target: str
    executions: int
    coverage: int
    features: int
    corpus: int
    findings: tuple[str, ...]
    seconds: float
    problem: str = ""


def obstacle() -> str:
    """Why atheris cannot be had here, "" where it can."""
    system, machine = platform.system(), platform.machine().lower()
    if system == "Linux" and machine in ("x86_64", "amd64"):
        return ""
    return f"atheris has builds for Linux on x86-64, and this is {system} on {machine}"


def provide() -> None:
    """Raises SetupError where atheris is not and cannot be installed."""
    if why := obstacle():
        raise SetupError(f"expected a system that atheris has builds for, got another: {why}. Run `make test` instead.")
    if missing([PACKAGES], layout.site_packages()):
        print("  installing atheris ... ", end="", flush=True)
        install("atheris", ["--only-binary=:all:", "-r", str(PACKAGES)], again=AGAIN)
        drop_cache()
        print("done", flush=True)


def chosen(only: Sequence[str]) -> list[str]:
    """The targets whose names begin with one of `only`; all of them where it is empty."""
    unknown = [name for name in only if not any(target.startswith(name) for target in TARGETS)]
    if unknown:
        raise ValueError(f"expected targets of {', '.join(TARGETS)}, got {unknown[0]!r}. Correct --only.")
    return [target for target in TARGETS if not only or target.startswith(tuple(only))]


def fuzz(target: str, seconds: int, python: str = sys.executable, folder: Path = FOLDER) -> Outcome:
    """One process of one target; its output goes to <folder>/<target>/log.txt."""
    place, started = folder / target, time.monotonic()
    place.mkdir(parents=True, exist_ok=True)
    command = [python, str(RUN), target, "--seconds", str(seconds), "--folder", str(place)]
    log, problem = place / "log.txt", ""
    with log.open("wb") as output:
        try:
            limit = seconds + _SPARE_SECONDS
            environment = layout.child_environment(OMP_NUM_THREADS="1")
            status = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=limit)
            problem = "" if status == 0 else f"exit status {status}, see {log}"
        except subprocess.TimeoutExpired:
            problem = f"it did not end after {limit} s, see {log}"
    text = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(target, *figures(text), found(place / "findings"), time.monotonic() - started, problem)


def figures(log: str) -> tuple[int, int, int, int]:
    """(executions, coverage, features, inputs kept) of the last line that tells them; zeros where none does."""
    steps = _STEP.findall(log)
    return tuple(int(n) for n in steps[-1]) if steps else (0, 0, 0, 0)


def found(folder: Path) -> tuple[str, ...]:
    """The inputs that broke something, of this run and of earlier ones that nobody deleted."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.suffix != ".txt")) if folder.is_dir() else ()


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [f"  {'target':<20} {'executions':>12} {'coverage':>9} {'features':>9} {'kept':>6} {'seconds':>8}  findings"]
    for each in outcomes:
        rows.append(
            f"  {each.target:<20} {each.executions:>12,} {each.coverage:>9,} {each.features:>9,} {each.corpus:>6,} "
            f"{each.seconds:>8,.0f}  {len(each.findings)}{'  ' + each.problem if each.problem else ''}"
        )
        rows += [f"    {FOLDER / each.target / 'findings' / name}.txt" for name in each.findings]
    return "\n".join(rows)


def main(minutes: float, only: Sequence[str]) -> int:
    """Returns 1 when a target found something or did not run."""
    targets = chosen(only)
    provide()
    outcomes = []
    for target in targets:
        print(f"  {target}, {minutes:g} min ...", flush=True)
        outcomes.append(fuzz(target, int(minutes * 60)))
    print(f"\n{table(outcomes)}")
    return int(any(each.findings or each.problem for each in outcomes))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz what reads other people's bytes.")
    parser.add_argument("--minutes", type=float, default=10, help="for each target (default 10)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = parsed()
    enter()
    sys.exit(status_of("fuzz", lambda: main(given.minutes, given.only)))
