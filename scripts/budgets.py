"""Partial loading by ComfyUI's own patcher: budgets x formats x (bit-equal, loaded bytes, peak, time).

    python scripts/budgets.py            demo weights and weights of the released width: docs/partial-loading.md
    python scripts/budgets.py --demo     demo weights alone, two minutes; the document is left alone

`make budgets` is the same. Each format runs in a process of its own; every figure is written to
output/budgets/report.json. Wide files are made once (15 GB with those of `make test-wide`, kept; `make clean` deletes
them). The exit status is 1 when a row differs in one bit from the encoder without a host, or more is loaded than the
budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import command
import layout
import setup

RESULTS = layout.OUTPUT / "budgets"
MEASURE = layout.ROOT / "scripts" / "budgets_measure.py"
BUDGETS = ("0", "10", "25", "50", "90", "100", "all")
LIMIT_SECONDS = 1800
FORMATS = {
    "bf16": "bf16", "nvfp4_awq": "nvfp4_awq", "int8_convrot": "int8_convrot", "gguf": "GGUF Q8_0",
    "streamed": "nvfp4_awq, streamed",
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """What is measured: `size` of the request's picture, `rounds` of each encode, `stream_from` as measured."""

    name: str
    layers: int
    size: tuple[int, int]
    rounds: int
    threads: int
    stream_from: int | None = None


def weights(name: str) -> Weights:
    from budgets_files import WIDE_LAYERS

    if name == "demo":
        return Weights("demo", 50, (320, 256), 2, 1, 4096)  # at tiny size threads only wait for each other
    return Weights("wide", WIDE_LAYERS, (256, 192), 1, os.cpu_count() or 1)


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("budgets", lambda: run(("demo",) if parsed.demo else ("demo", "wide"), host))


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prove partial loading at budgets from nothing to everything.")
    parser.add_argument("--demo", action="store_true", help="demo weights alone: two minutes, nothing of real width")
    return parser.parse_args(arguments)


def run(names: tuple[str, ...], host: Path, results: Path = RESULTS) -> int:
    """The whole command; returns the exit status."""
    import budgets_report
    from demo_report import machine

    tables = [budgets_report.Table(name, list(measured(name, host))) for name in names]
    facts = machine(_version(host))
    for table in tables:
        print("\n".join(["", *budgets_report.lines(table.rows)]))
    budgets_report.keep(tables, facts, results)
    if names == ("demo", "wide"):
        budgets_report.write(tables, facts)
        print(f"\n{budgets_report.DOCUMENT.relative_to(layout.ROOT)} written; every figure: {results / 'report.json'}")
    wrong = [f"{table.name}: {what}" for table in tables for row in table.rows for what in row.wrong]
    count = sum(len(table.rows) for table in tables)
    print("\n".join(f"FAIL  {line}" for line in wrong) or f"PASS  {count} rows: bit-equal, and within their budgets")
    return int(bool(wrong))


def _version(host: Path) -> str:
    import comfy_install

    return comfy_install.host_version(host)


def measured(name: str, host: Path) -> Iterator:
    """A row for each format and budget of the demo or the wide weights."""
    import budgets_files
    import given_checkpoint
    from budgets_report import Row

    tokenizer = given_checkpoint.bundled_tokenizer(host)
    if name == "demo":
        files = budgets_files.demo_files(given_checkpoint.demo(host, "budgets").path)
    else:
        files = budgets_files.wide_files()
    for key, title in FORMATS.items():
        reader = "stream" if key == "streamed" else "mmap"
        found = measure(files.get(key, files["nvfp4_awq"]), weights(name), reader, BUDGETS, host, tokenizer)
        rows = [Row(title, found["weights"], row) for row in found["rows"]]
        print(f"  {'FAIL' if any(row.wrong for row in rows) else 'PASS'}  {name}: {title}", flush=True)
        yield from rows


def measure(path: Path, of: Weights, reader: str, budgets: tuple[str, ...], host: Path, tokenizer: Path) -> dict:
    """budgets_measure.py in a process of its own. Raises RuntimeError when it ends badly."""
    return finished(started(path, of, reader, budgets, host, tokenizer), path)


def started(
    path: Path, of: Weights, reader: str, budgets: tuple[str, ...], host: Path, tokenizer: Path
) -> subprocess.Popen:
    """Such a process, running; `finished` waits for its figures."""
    options = ["--host", str(host), "--tokenizer", str(tokenizer), "--layers", str(of.layers), "--reader", reader]
    options += ["--size", *map(str, of.size), "--rounds", str(of.rounds), "--budgets", *budgets]
    if of.stream_from is not None and reader == "stream":
        options += ["--stream-from", str(of.stream_from)]
    # freed memory of this size goes back to the system at once: peaks of one process do not add up
    environment = layout.child_environment(OMP_NUM_THREADS=str(of.threads), MALLOC_MMAP_THRESHOLD_="1048576")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(MEASURE), str(path), *options], env=environment, **pipes)


def finished(process: subprocess.Popen, path: Path) -> dict:
    with process:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode:
        raise RuntimeError(
            f"expected figures of {path.name}, got exit status {process.returncode}:\n{errors[-1500:]}\n"
            "This is an error of the encoder or of the script: please report it."
        )
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
