"""The tables of partial loading: which rows are right, as lines for the terminal, docs/partial-loading.md and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import layout

DOCUMENT = layout.ROOT / "docs" / "partial-loading.md"
TITLES = {
    "demo": "Demo weights: 50 decoder layers of width 64, 27 vision blocks, a prompt with a 320 x 256 picture",
    "wide": "Real width: 2 decoder layers of width 5120, the whole vision tower, a prompt with a 256 x 192 picture",
}


@dataclass(frozen=True)
class Row:
    """`weights`: bytes under the patcher; `found`: a row of budgets_measure.py."""

    format: str
    weights: int
    found: dict

    @property
    def wrong(self) -> list[str]:
        """Everything that is not as it should be."""
        found, what = self.found, f"{self.format} at {label(self.found['budget'])}"
        wrong = [] if found["same"] else [f"{what}: expected the bits of the encoder without a host, got others"]
        if found["limit"] is not None and found["loaded"] > found["limit"]:
            wrong.append(f"{what}: expected at most {found['limit']:,} bytes loaded, got {found['loaded']:,}")
        if found["limit"] is None and found["loaded"] != self.weights:
            wrong.append(f"{what}: expected all {self.weights:,} bytes loaded, got {found['loaded']:,}")
        if found["held"] != found["loaded"]:
            wrong.append(f"{what}: ComfyUI counts {found['loaded']:,} bytes as loaded, held are {found['held']:,}")
        return wrong


@dataclass(frozen=True)
class Table:
    """name: a key of TITLES."""

    name: str
    rows: Sequence[Row]


def label(budget: str) -> str:
    return "no limit" if budget == "all" else f"{budget} %"


def lines(rows: Sequence[Row]) -> list[str]:
    """Markdown."""
    head = ["| | format | budget | loaded | bit-equal | peak | load | encode |", "|---|---|---|---|---|---|---|---|"]
    return head + [f"| {' | '.join(_cells(row))} |" for row in rows]


def _cells(row: Row) -> list[str]:
    found = row.found
    loaded = f"{found['loaded'] / 1e6:,.1f} of {row.weights / 1e6:,.1f} MB"
    peak = "" if found["peak"] is None else f"{found['peak'] / 1e6:,.1f} MB"
    times = [f"{found['load_seconds']:.2f} s", f"{found['seconds']:.2f} s"]
    verdict = "FAIL" if row.wrong else "PASS"
    return [verdict, row.format, label(found["budget"]), loaded, "yes" if found["same"] else "NO", peak, *times]


def document(tables: Sequence[Table], facts: dict) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "transformers")
    parts = [
        "# Partial loading",
        "Written by `make budgets` (`python scripts/budgets.py`): ComfyUI's own model patcher is given a share of the "
        "weights as its budget and loads what fits; the rest stays where it lies and is brought for each use. "
        f"{versions}.",
        WHAT,
    ]
    for table in tables:
        parts += [f"## {TITLES[table.name]}", "\n".join(lines(table.rows))]
    return "\n\n".join(parts) + "\n"


WHAT = """\
**No GPU was used.** On a machine without one, loaded and offloaded weights are the same memory and loading moves
nothing. So the CPU stands in for a device (`scripts/budgets_device.py`): what the patcher loads is copied into memory
of its own and dropped when it is offloaded; what is offloaded is copied for each use, packed and streamed weights a
layer ahead.

Measured here:

- **bit-equal**: the hidden states against those of the encoder without ComfyUI, mapped from the file, every bit.
- **loaded**: bytes that the patcher has loaded, by its own count, which must be that of the tensors held. Never more
  than the budget; often less, because ComfyUI keeps room for the largest module that is brought per use. "no limit"
  loads everything. The token table is not among these weights: only the rows of a request are read, on the CPU.
- **peak**: the most private memory during load and encode, above the process before loading: what is loaded, what is on
  its way, the matrix being unpacked and the activations, up to a few MB of the process itself. A device would have to
  hold about this. Packed and streamed weights keep two layers on the way, the one in use and the next:
  in the table of the real width these are all the decoder layers there are.
- **load**, **encode**: seconds on this CPU, in a process of its own. Copies go from memory to memory.

Not measured here: how long a transfer to a GPU takes and how much of it the copy stream hides, pinned memory, the GPU
allocator's own overhead. The seconds are those of the CPU named above, shared with other work, and say nothing about a
GPU. Weights are random.

That offloaded weights are read through one door alone, and that every operation runs on the compute device, are tests
(`tests/test_partial_loading.py`): offloaded weights read as NaN outside of it, and a device without memory (`meta`)
stands in for the GPU."""


def keep(tables: Sequence[Table], facts: dict, results: Path) -> None:
    """report.json with every figure."""
    results.mkdir(parents=True, exist_ok=True)
    rows = [
        {"weights": table.name, "format": row.format, "bytes": row.weights, "wrong": row.wrong, **row.found}
        for table in tables
        for row in table.rows
    ]
    (results / "report.json").write_text(json.dumps({**facts, "rows": rows}, indent=2), encoding="utf-8")


def write(tables: Sequence[Table], facts: dict, target: Path = DOCUMENT) -> None:
    target.write_text(document(tables, facts), encoding="utf-8", newline="\n")
