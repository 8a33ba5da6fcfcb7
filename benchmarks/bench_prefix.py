"""An edited request with what the one before it left, against encoding it fresh; and what keeping costs a cold encode.

At the real width in bf16 with 4 decoder layers and the whole vision tower: another prompt of 312 tokens after the same
two keyframes of 1344 x 768, and a ninth reference of 864 x 480 after eight with the same prompt. Both encodes of a
ratio run in one process, one after the other. With 50 layers vision weighs less: `at_50` says what the ratio would be
if every layer took what these take.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from given_checkpoint import bundled_tokenizer
from rounds import run, take_turns
from verdict import Target, Verdict, at_most
from wide_files import bf16_folder

LAYERS, RELEASED = 4, 50
REPEATS = {"prompt": 1, "appended": 1, "keeping": 2}  # in each process
TIMES_FASTER = {"prompt": 9.0, "appended": 6.0}
KEEPING_LIMIT = 1.03
SAME = 2e-2  # relative L2 of two bf16 encodes
LIMIT_SECONDS = 1800
NAMES = {
    "prompt": "new prompt after two keyframes",
    "appended": "ninth reference after eight",
    "keeping": "a cold encode that is kept",
}


def bench(rounds: int, host: Path) -> Verdict:
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    found = take_turns({edit: partial(measured, edit, folder, tokenizer) for edit in NAMES}, rounds)
    rows = {edit: row(of) for edit, of in found.items()}
    return Verdict("prefix", lines(rows), targets_of(rows), {"layers": LAYERS, "rounds": rounds, **rows})


def measured(edit: str, folder: Path, tokenizer: Path) -> dict:
    """One round in a process of its own; see measure_prefix.py."""
    options = ("--layers", LAYERS, "--tokenizer", tokenizer, "--repeats", REPEATS[edit])
    return checked(edit, run("measure_prefix.py", edit, folder, *options, limit=LIMIT_SECONDS))


def checked(edit: str, found: dict) -> dict:
    """Raises RuntimeError when the two sides did not do the same work."""
    if found["difference"] <= SAME:
        return found
    raise RuntimeError(
        f"bench prefix: expected the same hidden states of the edit {edit} fresh and with what was kept, got relative "
        f"L2 {found['difference']:.3g}. This is an error of the benchmark or of the encoder: please report it."
    )


def row(rounds: Sequence[dict]) -> dict:
    """Medians over all pairs of all rounds."""
    sides = {name: _joined(rounds, name) for name in ("seconds", "decoder")}
    kept_to_fresh = _median_ratio(sides["seconds"]["kept"], sides["seconds"]["fresh"])
    at_50 = {
        side: [
            seconds + decoder * (RELEASED / LAYERS - 1)
            for seconds, decoder in zip(sides["seconds"][side], sides["decoder"][side], strict=True)
        ]
        for side in ("fresh", "kept")
    }
    return {
        **{key: rounds[0][key] for key in ("tokens", "reused", "held")},
        "difference": max(found["difference"] for found in rounds),
        "seconds": {side: statistics.median(values) for side, values in sides["seconds"].items()},
        "kept_to_fresh": kept_to_fresh,
        "kept_to_fresh_at_50": _median_ratio(at_50["kept"], at_50["fresh"]),
    }


def _joined(rounds: Sequence[dict], name: str) -> dict[str, list[float]]:
    return {side: [value for found in rounds for value in found[name][side]] for side in ("fresh", "kept")}


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def targets_of(rows: Mapping[str, dict]) -> list[Target]:
    faster = [
        (
            1 / rows[edit]["kept_to_fresh"] >= least,
            f"{NAMES[edit]}: {1 / rows[edit]['kept_to_fresh']:.3g}x faster than fresh (at least {least:g}x)",
        )
        for edit, least in TIMES_FASTER.items()
    ]
    keeping = at_most(f"{NAMES['keeping']}, to one that is not", rows["keeping"]["kept_to_fresh"], KEEPING_LIMIT)
    return [*faster, keeping]


def lines(rows: Mapping[str, dict]) -> list[str]:
    found = [f"{'':<32}{'tokens':>7}{'reused':>8}{'fresh':>9}{'kept':>9}{'ratio':>8}{'at 50':>8}{'held':>10}  apart"]
    for edit, of in rows.items():
        fresh, kept = (f"{of['seconds'][side]:.2f}s" for side in ("fresh", "kept"))
        found.append(
            f"{NAMES[edit]:<32}{of['tokens']:>7}{of['reused']:>8}{fresh:>9}{kept:>9}{1 / of['kept_to_fresh']:>7.2f}x"
            f"{1 / of['kept_to_fresh_at_50']:>7.2f}x{of['held'] / 1e9:>7.2f} GB  {of['difference']:.2g}"
        )
    return found
