"""The section "Packed files against bf16" of docs/parity.md, and its picture.

Contract: `write(reports)` replaces what stands between two marks in the document, {kind: report.json of a parity walk};
`lines(reports)` is the table for the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import layout

DOCUMENT = layout.ROOT / "docs" / "parity.md"
PICTURE = DOCUMENT.with_name("parity-packed.png")
BEGIN, END = "<!-- make bench ARGS=depth writes from here -->", "<!-- to here -->"
COLOURS = ("#d62728", "#1f77b4", "#2ca02c")


def write(reports: Mapping[str, dict], document: Path = DOCUMENT, picture: Path = PICTURE) -> None:
    text = document.read_text(encoding="utf-8")
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        text = before.rstrip() + "\n" + rest.partition(END)[2]
    document.write_text(f"{text.rstrip()}\n\n{section(reports, picture.name)}", encoding="utf-8", newline="\n")
    draw(reports, picture)


def section(reports: Mapping[str, dict], picture: str) -> str:
    first = next(iter(reports.values()))
    return f"""{BEGIN}
## Packed files against bf16

`make bench ARGS=depth`: hidden 5120, intermediate 25600, the vision tower of 27 blocks, {first["decoder_layers"]}
decoder layers, random weights, two keyframes and a prompt ({first["tokens"]} tokens), computed in {first["dtype"]} with
torch {first["torch"]}. The packed files are written from the bf16 folder; errors are relative L2 of their hidden states
against the folder's, both by our encoder, chained from the request on.

{_table(reports)}

Neither format packs the vision tower, so it is equal; the token table is int8 in nvfp4_awq. Random weights have no
outliers and no structure that rounding errors could follow, and AWQ's factors are random here too: on real weights
figures differ. For your own pair of files: `make parity CHECKPOINT=/path/to/bf16 ARGS="--against /path/to/packed"`.

![packed files against bf16](picture)
{END}
""".replace("(picture)", f"({picture})")


def lines(reports: Mapping[str, dict]) -> list[str]:
    return _table(reports).splitlines()


def _table(reports: Mapping[str, dict]) -> str:
    rows = [f"| state behind | {' | '.join(reports)} |", "|---|" + "---|" * len(reports)]
    found = [{row["part"]: row for row in report["against"]} for report in reports.values()]
    for part in filter(_shown, found[0]):
        rows.append(f"| {part} | {' | '.join(_figure(errors[part]) for errors in found)} |")
    return "\n".join(rows)


def _shown(part: str) -> bool:
    """Of the vision tower what leaves it: neither format packs it."""
    return part.endswith((": merger", "decoder input")) or part.startswith("layer ")


def _figure(row: dict) -> str:
    return "0 (bit-equal)" if row["max_abs"] == 0 else f"{row['relative']:.4f}"


def draw(reports: Mapping[str, dict], path: Path) -> None:
    os.environ.setdefault("MPLCONFIGDIR", str(layout.COMFY / "cache" / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (kind, report), colour in zip(reports.items(), COLOURS, strict=False):
        errors = {row["part"]: row["relative"] for row in report["against"]}
        points = [errors["decoder input"], *(errors[f"layer {i}"] for i in range(report["decoder_layers"]))]
        panel.plot(range(-1, len(points) - 1), points, "o-", color=colour, label=kind)
    first = next(iter(reports.values()))
    ticks = range(-1, first["decoder_layers"])
    panel.set_xticks(list(ticks), ["input", *map(str, range(first["decoder_layers"]))])
    panel.set_xlabel("decoder layer")
    panel.set_ylabel("relative L2 error against bf16")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend()
    panel.set_title(f"Packed files at the released width, random weights, {first['dtype']}", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
