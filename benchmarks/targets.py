"""Every target of every benchmark, met or not, as the result files say: printed, and a section of benchmarks/README.md.

Contract: `read(folder)` -> {benchmark: its result file}; `table(found)` for the terminal; `write(found, document)`
replaces what stands between two marks in the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from verdict import RESULTS

DOCUMENT = Path(__file__).resolve().with_name("README.md")
BEGIN, END = "<!-- make bench writes from here -->", "<!-- to here -->"
MARKS = {True: "met", False: "missed", None: "not measured"}


def read(names: Sequence[str], folder: Path = RESULTS) -> dict[str, dict]:
    """The result files, in the order of `names`; one that is not there is a target that was not measured."""
    return {name: _read(folder / f"{name}.json") for name in names}


def _read(file: Path) -> dict:
    if not file.is_file():
        return {"targets": [{"met": None, "target": "not run yet"}]}
    return json.loads(file.read_bytes())


def table(found: Mapping[str, dict]) -> list[str]:
    lines = [
        f"{MARKS[target['met']]:<14}{name:<9} {target['target']}"
        for name, of in found.items()
        for target in of["targets"]
    ]
    return [*lines, summary(found)]


def summary(found: Mapping[str, dict]) -> str:
    met = [target["met"] for of in found.values() for target in of["targets"]]
    return f"{met.count(True)} of {len(met)} targets met, {met.count(False)} missed, {met.count(None)} not measured"


def section(found: Mapping[str, dict]) -> str:
    rows = [
        f"| {name} | {target['target']} | {MARKS[target['met']]} |"
        for name, of in found.items()
        for target in of["targets"]
    ]
    taken = [f"| {name} | {_where(of)} |" for name, of in found.items() if "machine" in of]
    parts = [
        BEGIN, summary(found) + ".", "", "| benchmark | target | |", "|---|---|---|", *rows, "",
        "| benchmark | measured on |", "|---|---|", *taken, END,
    ]  # fmt: skip
    return "\n".join(parts)


def _where(of: dict) -> str:
    """Machine and versions, and how busy it was."""
    machine, load = of["machine"], of["load_average"]
    kit = ", ".join(f"{name} {machine[name]}" for name in ("torch", "transformers") if name in machine)
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {kit}; load average "
        f"{load['before']} before"
    )


def write(found: Mapping[str, dict], document: Path = DOCUMENT) -> None:
    """Raises ValueError where the marks are missing."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"bench: expected the marks {BEGIN} and {END} in {document.name}, got none. "
            "Put them where the table belongs."
        )
    document.write_text(before + section(found) + after, encoding="utf-8", newline="\n")
