"""The table of formats: which rows are right, as lines for the terminal, docs/formats.md and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import layout
from formats_list import Format
from formats_measure import READERS

DOCUMENT = layout.ROOT / "docs" / "formats.md"
LINEARS_A_LAYER = 7
NOT_H3S_WIDTH = "expected hidden width 5120"


@dataclass(frozen=True)
class Row:
    """`found`: what formats_measure.py printed; `size`: bytes of its files."""

    format: Format
    found: dict
    size: int
    layers: int

    @property
    def wrong(self) -> list[str]:
        """Everything that is not as the list says."""
        return [f"{self.format.name}: {what}" for what in (*_doctor(self), *_result(self))]

    @property
    def bits(self) -> bool:
        return self.found.get("same_bits") == list(READERS[1:])


def _doctor(row: Row) -> list[str]:
    format, doctor = row.format, row.found["doctor"]
    if format.refusal:
        refused = any(format.refusal in problem for problem in doctor["problems"])
        return [] if refused else [f"expected the doctor to refuse it by name, got {doctor['problems']}"]
    allowed = [] if format.marked else [NOT_H3S_WIDTH]
    problems = [problem for problem in doctor["problems"] if not any(words in problem for words in allowed)]
    wrong = [f"the doctor says: {problem}" for problem in problems]
    expected = {
        "linears": sorted(format.linears), "linears_known": LINEARS_A_LAYER * row.layers,
        "embedding": format.embedding, "awq": format.awq,
    }  # fmt: skip
    return wrong + [
        f"expected the doctor to find {key} {value}, got {doctor[key]}"
        for key, value in expected.items()
        if doctor[key] != value
    ]


def _result(row: Row) -> list[str]:
    format, found = row.format, row.found
    if format.refusal:
        return [] if format.refusal in found.get("refused", "") else ["expected to be refused by name, got another end"]
    if "refused" in found:
        return [f"expected to load, got {found['refused']}"]
    wrong = [] if row.bits else [f"expected the same bits from every reader, got them from {found['same_bits']} alone"]
    if not found["error"] <= format.bound:
        wrong.append(f"expected an error of at most {format.bound:g}, got {found['error']:.3g}")
    return wrong


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown."""
    lines = [
        "| | format | the doctor | bytes | load | error | worst token | bound | readers equal | peak |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [f"| {' | '.join(_cells(row))} |" for row in rows]


def _cells(row: Row) -> list[str]:
    verdict, found = "FAIL" if row.wrong else "PASS", row.found
    line = _shortened(found["doctor"]["line"])
    if not row.format.marked:
        line += "; says that the width is not H3's (this family carries no mark)"
    start = [verdict, row.format.name, line, f"{row.size / 1e6:.1f} MB"]
    if "refused" in found:
        return [*start, "refused", "", "", "", "", ""]
    private = "" if found["private"] is None else f"{found['private'] / 1e6:.0f} MB"
    figures = [f"{found['load_seconds']:.2f} s", _error(found["error"]), _error(found["worst_token"])]
    return [*start, *figures, _error(row.format.bound), "yes" if row.bits else "NO", private]


def _shortened(line: str) -> str:
    """Without what all rows say."""
    parts = line.removeprefix("demo weights: output is meaningless; ").split(", ")
    return ", ".join(part for part in parts if not part.endswith((" wide", " layers", " needed", " tower")))


def _error(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if value < 1e-3 else f"{value:.4f}"


def refusals(rows: Sequence[Row]) -> list[str]:
    """What the loader says of each format that is not served."""
    return [f"- {row.format.name}: {row.found['refused']}" for row in rows if "refused" in row.found]


def document(rows: Sequence[Row], facts: dict) -> str:
    tokens = next(row.found["tokens"] for row in rows if "tokens" in row.found)
    versions = ", ".join(f"{name} {version}" for name, version in facts.items())
    paragraphs = [
        "# Formats",
        "Written by `make formats` (`python scripts/formats.py`): a small generated checkpoint (256 wide, "
        f"{rows[0].layers} decoder layers, the vision tower's 27 blocks at a quarter of its width, random weights) in "
        f"every format, each opened in a process of its own. {versions}.",
        "\n".join(table(rows)),
        f"**error**: relative L2 of the hidden states of a prompt with a picture ({tokens} tokens) against those of "
        "the bf16 folder, both computed in float32: what the format itself costs, on random weights. **worst token**: "
        "the same for the token where it is largest. **readers equal**: mapped, read and streamed from the file, the "
        "hidden states are equal to the last bit. **peak**: memory that no file backs during load and encode with "
        "mapped weights, above the process before; the tokenizer and the activations are most of it. **load**: two "
        "processes ran at a time. GGUF files are packed by this project's own simple packers, which are coarser than "
        "llama.cpp's; B packs the vision tower too (Q6_K), as do C's Q5_0 and Q4_0 (Q8_0). What packing costs at the "
        "real width is in [parity.md](parity.md#packed-files-against-bf16).",
        "## Refused\n\nThe loader's own words:",
        "\n".join(refusals(rows)),
    ]
    return "\n\n".join(paragraphs) + "\n"


def write(rows: Sequence[Row], facts: dict, results: Path, target: Path | None = None) -> Path:
    """The document (target None: formats.md beside the figures), and report.json with every figure."""
    results.mkdir(parents=True, exist_ok=True)
    body = {
        **facts,
        "rows": [{"format": row.format.name, "bytes": row.size, "wrong": row.wrong, **row.found} for row in rows],
    }
    (results / "report.json").write_text(json.dumps(body, indent=2), encoding="utf-8")
    target = target or results / "formats.md"
    target.write_text(document(rows, facts), encoding="utf-8", newline="\n")
    return target
