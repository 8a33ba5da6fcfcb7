"""How time and memory grow with the request: prompts of 256 to 16384 tokens, and one picture of 1024 to 16384 patches.

At the real width in bf16 with one decoder layer (every layer takes the same, one after the other) and the whole
vision tower. A constant, a linear and a quadratic term are fitted, each point weighing by its relative error.
Attention is quadratic in time; no memory may be: a mask of S x S would take 1 byte (bool) to 4 bytes (float32) a pair
of tokens, so a quarter of a byte is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import charts
import layout
import numpy as np
from given_checkpoint import bundled_tokenizer
from rounds import GIVE_BACK, median, run, take_turns
from verdict import Target, Verdict, at_most
from wide_files import bf16_folder

LAYERS = 1
SIZES = {"text": (256, 512, 1024, 2048, 4096, 8192, 16384), "picture": (512, 768, 1024, 1536, 2048)}
UNITS = {"text": "tokens", "picture": "patches"}
ROUNDS = 3  # at most
LIMIT_SECONDS = 1800
PAIR_LIMIT = 0.25  # bytes a pair
PICTURE = layout.ROOT / "benchmarks" / "results" / "growth.png"


def bench(rounds: int, host: Path) -> Verdict:
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    options = ("--layers", LAYERS, "--tokenizer", tokenizer)
    series = {}
    for name, sizes in SIZES.items():
        print(f"  {name} ", end="", flush=True)
        measured = partial(run, "measure_growth.py", name, limit=LIMIT_SECONDS)
        cases = {str(size): partial(measured, size, folder, *options) for size in sizes}
        timed = take_turns(cases, min(rounds, ROUNDS))
        frugal = {size: partial(case, environment=GIVE_BACK) for size, case in cases.items()}
        series[name] = of_series(timed, take_turns(frugal, 1))
    if all(of["bytes"] is not None for of in series.values()):
        charts.growth(series, PICTURE)
    targets = [target(name, of) for name, of in series.items()]
    return Verdict("growth", lines(series), targets, {"layers": LAYERS, **series})


def of_series(timed: Mapping[str, Sequence[dict]], frugal: Mapping[str, Sequence[dict]]) -> dict:
    """tokens, seconds, bytes (None where memory is not known) and their fits."""
    tokens = [of[0]["tokens"] for of in timed.values()]
    seconds = [median(of, "seconds") for of in timed.values()]
    held = [of[0]["bytes"] for of in frugal.values()]
    held = None if None in held else held
    fits = {"seconds": fit(tokens, seconds), "bytes": None if held is None else fit(tokens, held, relative=False)}
    return {"tokens": tokens, "seconds": seconds, "bytes": held, "fit": fits}


def fit(sizes: Sequence[int], values: Sequence[float], relative: bool = True) -> dict[str, float]:
    """Least squares of constant + linear n + quadratic n**2; relative: errors count in proportion to the values."""
    n, wanted = np.asarray(sizes, float), np.asarray(values, float)
    scale, weight = n.max(), 1 / wanted if relative else np.ones_like(n)
    columns = np.stack([np.ones_like(n), n / scale, (n / scale) ** 2], axis=1)  # of like size
    found = np.linalg.lstsq(columns * weight[:, None], wanted * weight, rcond=None)[0] / scale ** np.arange(3)
    return dict(zip(("constant", "linear", "quadratic"), map(float, found), strict=True))


def target(name: str, of: dict) -> Target:
    found = None if of["bytes"] is None else max(of["fit"]["bytes"]["quadratic"], 0.0)
    return at_most(f"{name}: memory that grows with the square, a pair of {UNITS[name]}", found, PAIR_LIMIT, " bytes")


def lines(series: Mapping[str, dict]) -> list[str]:
    found = [f"{'':<10}{'size':>7}{'seconds':>10}{'us each':>10}{'memory':>12}{'kB each':>10}"]
    for name, of in series.items():
        for i, size in enumerate(of["tokens"]):
            seconds, held = of["seconds"][i], None if of["bytes"] is None else of["bytes"][i]
            memory = f"{'not known':>12}" if held is None else f"{held / 1e6:>9.1f} MB{held / size / 1e3:>10.1f}"
            found.append(f"{name:<10}{size:>7}{seconds:>9.2f}s{seconds / size * 1e6:>10.0f}{memory}")
        found += [f"{name}: {what}" for what in _fits(of, UNITS[name])]
    return found


def _fits(of: dict, unit: str) -> list[str]:
    time, held, largest = of["fit"]["seconds"], of["fit"]["bytes"], max(of["tokens"])
    share = time["quadratic"] * largest**2 / of["seconds"][-1]
    found = [
        f"seconds = {time['constant']:.2g} + {time['linear']:.3g} n + {time['quadratic']:.3g} n^2 "
        f"(the square is {share:.0%} at {largest} {unit})"
    ]
    if held is not None:
        found.append(
            f"bytes = {held['constant']:.2g} + {held['linear']:.4g} n + {held['quadratic']:.2g} n^2 beyond the weights"
        )
    return found
