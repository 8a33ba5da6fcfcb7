"""plot.png of the parity walk: error by depth, on the same input (above) and accumulated (below).

Left the vision tower, right the decoder; relative L2 on a logarithmic axis whose foot stands for bit-equal.
"""

from __future__ import annotations

import os
from pathlib import Path

import layout
from parity_parts import BLOCK, DECODER_INPUT, DEEPSTACK, LAYER, MERGER, PATCHES, POSITIONS, Part
from parity_report import Report

FOOT = 1e-9
COLOURS = {"image": "#1f77b4", "video": "#2ca02c", "decoder": "#1f77b4", "against": "#d62728", "limit": "#888888"}


def draw(report: Report, path: Path) -> None:
    """Write the picture; matplotlib keeps its caches inside the clone."""
    os.environ.setdefault("MPLCONFIGDIR", str(layout.COMFY / "cache" / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        2, 2, figsize=(13, 8), sharey=True, layout="constrained", gridspec_kw={"width_ratios": [1, 1.6]}
    )
    for row, (which, title) in enumerate(
        (("same_input", "each part alone, on the same input"), ("chained", "accumulated, from the request on"))
    ):
        for column, tower in enumerate((True, False)):
            _panel(panels[row][column], report, which, tower)
            panels[row][column].set_title(f"{'Vision tower' if tower else 'Decoder'}: {title}", fontsize=11)
    facts = report.facts
    figure.suptitle(
        f"{facts['checkpoint']} with transformers {facts['transformers']}, {facts['dtype']}, {facts['tokens']} tokens"
        + (" (demo weights)" if report.is_demo else "")
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


# Blocks and layers stand at their number, what comes before them to the left.
BEFORE = {PATCHES: (-6.5, "patch"), POSITIONS: (-3.0, "pos."), DECODER_INPUT: (-3.0, "input")}


def depth(part: Part) -> float | None:
    """Where a part stands on its axis; None for mergers."""
    if part.kind in BEFORE:
        return BEFORE[part.kind][0]
    return part.index if part.kind in (BLOCK, LAYER) else None


def _panel(panel, report: Report, which: str, tower: bool) -> None:
    rows = [row for row in report.rows if (row.part.stage != "decoder") == tower and getattr(row, which) is not None]
    for stage in dict.fromkeys(row.part.stage for row in rows):
        errors = [(row.part, getattr(row, which)) for row in rows if row.part.stage == stage]
        _line(panel, errors, COLOURS[stage], "ours against transformers" + (f", {stage}s" if tower else ""))
        _limits(panel, errors)
    if report.against and which == "chained":
        errors = [(part, error) for part, error in report.against if (part.stage != "decoder") == tower]
        _line(panel, errors, COLOURS["against"], f"{report.facts['against']} against {report.facts['checkpoint']}")
    _dress(panel, bool(rows), tower, [row.part for row in rows])


def _line(panel, errors: list, colour: str, label: str) -> None:
    points = [(depth(part), _height(error)) for part, error in errors if depth(part) is not None]
    if points:
        panel.plot(
            *zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1.2, label=label, clip_on=False
        )
    taps = _merger_points(errors)
    if taps:
        panel.plot(
            *zip(*taps, strict=True), "D", color=colour, markersize=7, fillstyle="none", label="mergers", clip_on=False
        )


def _merger_points(errors: list) -> list[tuple[float, float]]:
    """DeepStack mergers at the block they follow, the final merger behind the last one."""
    points, block = [], -1.0
    for part, error in errors:
        block = float(part.index) if part.kind == BLOCK else block
        if part.kind in (DEEPSTACK, MERGER):
            points.append((block + (part.kind == MERGER), _height(error)))
    return points


def _limits(panel, errors: list) -> None:
    points = [(depth(part), error.limit) for part, error in errors if depth(part) is not None]
    above = [(x, y) for x, y in points if y > 0]
    if above:
        style = {"color": COLOURS["limit"], "label": "limit"}
        panel.plot(*zip(*above, strict=True), "_" if len(above) == 1 else "--", markersize=14, linewidth=1, **style)


def _height(error) -> float:
    return max(error.relative, FOOT) if error.relative == error.relative else 1e1


def _dress(panel, any_rows: bool, tower: bool, parts: list[Part]) -> None:
    panel.set_yscale("log")
    panel.set_ylim(FOOT / 3, 2)
    panel.set_yticks([FOOT, 1e-8, 1e-6, 1e-4, 1e-2, 1], ["0 (bit-equal)", "1e-8", "1e-6", "1e-4", "1e-2", "1"])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.set_ylabel("relative L2 error")
    panel.tick_params(labelleft=True)
    last = max((part.index for part in parts if part.kind in (BLOCK, LAYER)), default=0)
    first = dict(BEFORE[kind] for kind in ((PATCHES, POSITIONS) if tower else (DECODER_INPUT,)))
    ticks = {**first, **{i: str(i) for i in range(0, last + 1, 5 if last > 12 else 1)}}
    panel.set_xticks(list(ticks), list(ticks.values()))
    panel.set_xlabel("block" if tower else "layer")
    if any_rows:
        panel.legend(fontsize=8, loc="center right", framealpha=0.9)  # errors are near the foot or near 1e-2
    else:
        panel.text(0.5, 0.5, "no pictures in this request", transform=panel.transAxes, ha="center")
