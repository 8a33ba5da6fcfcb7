"""The bar charts and plots of the results folder, drawn with matplotlib.

Contract: each function draws one picture at `path`. matplotlib keeps its caches inside the clone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import layout

COLOURS = ("#1f77b4", "#ff7f0e", "#7f7f7f", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")


@contextmanager
def drawn(path: Path, panels: int = 1, width: float = 8.0):
    """The axes; the picture is written at the end of the block."""
    os.environ.setdefault("MPLCONFIGDIR", str(layout.COMFY / "cache" / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(width, 4.5), layout="constrained", squeeze=False)
    try:
        yield list(axes[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def encode(rows: Mapping[str, dict], parts: Sequence[str], path: Path) -> None:
    """One panel a request: seconds of each side, split into parts. rows: as bench_encode makes them."""
    with drawn(path, len(rows), 4.0 * len(rows)) as panels:
        for panel, (request, row) in zip(panels, rows.items(), strict=True):
            names = ("tokens and pixels", *parts)
            for colour, part in zip(COLOURS, names, strict=True):
                _stack(panel, row["parts"], part, names, colour)
            panel.set_title(f"{request}, {row['tokens']} tokens: {row['to_official']:.2f} of official", fontsize=10)
            panel.set_ylabel("seconds")
        panels[-1].legend(fontsize=8)


def _stack(panel, sides: Mapping[str, Mapping[str, float]], part: str, order: Sequence[str], colour: str) -> None:
    below = order[: order.index(part)]
    bottom = [sum(parts.get(other, 0.0) for other in below) for parts in sides.values()]
    heights = [parts.get(part, 0.0) for parts in sides.values()]
    if any(height > 0 for height in heights):
        panel.bar(list(sides), heights, bottom=bottom, color=colour, label=part)


def ratios(rows: Mapping[str, float], limits: Mapping[str, float], path: Path, title: str) -> None:
    """One bar a ratio, and a mark at its limit."""
    with drawn(path, 1, 10.0) as (panel,):
        names = list(rows)
        panel.barh(names, list(rows.values()), color=[COLOURS[0 if rows[n] <= limits[n] else 4] for n in names])
        panel.plot([limits[name] for name in names], names, "k|", markersize=16, label="at most")
        for name, value in rows.items():
            panel.annotate(f" {value:.2f}", (value, name), va="center", fontsize=8)
        panel.invert_yaxis()
        panel.set_title(title, fontsize=11)
        panel.legend(fontsize=8)


def growth(series: Mapping[str, dict], path: Path) -> None:
    """Points and fitted curve of each series: time left, memory right. series: as bench_growth makes them."""
    with drawn(path, 2, 11.0) as panels:
        for panel, what, scale, label in zip(
            panels, ("seconds", "bytes"), (1.0, 1e9), ("seconds", "GB beyond the weights"), strict=True
        ):
            for colour, (name, of) in zip(COLOURS, series.items(), strict=False):
                _points(
                    panel, of["tokens"], [value / scale for value in of[what]], of["fit"][what], scale, name, colour
                )
            panel.set_xlabel("tokens, or patches of a picture")
            panel.set_ylabel(label)
            panel.grid(alpha=0.3)
            panel.legend(fontsize=8)


def _points(panel, tokens, values, fit, scale: float, name: str, colour: str) -> None:
    panel.plot(tokens, values, "o", color=colour, label=name)
    xs = [max(tokens) * i / 100 for i in range(101)]
    constant, linear, square = (fit[part] / scale for part in ("constant", "linear", "quadratic"))
    panel.plot(xs, [constant + linear * x + square * x * x for x in xs], "-", color=colour, alpha=0.6)
