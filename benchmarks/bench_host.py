"""Whole requests in a ComfyUI: its own H3 encoder against ours, from the same single files of the real width, 4 layers.

bf16 with weights in memory; packed files cold (from opening the file to the conditioning, its pages dropped from the
page cache before) and warm (the same request once more). Needs COMFYUI_PATH with an H3 encoder of its own, 0.30 or
newer; own_encoder.py says how it is given a file of 4 layers. Its encoder computes in float32 on a CPU: results
differ by bf16's rounding, and by more where it computes with packed activations.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import charts
import layout
from bench_encode import LAYERS, difference
from bench_load import _forget
from given_checkpoint import bundled_tokenizer
from host_files import single_file
from own_encoder import SIDES, has_own_encoder
from rounds import median, ratio, run, take_turns
from verdict import Target, Verdict, at_most

CASES = (
    ("bf16", "prompt"), ("bf16", "keyframes"),
    ("nvfp4_awq", "template"), ("nvfp4_awq", "keyframes"), ("int8_convrot", "template"), ("int8_convrot", "keyframes"),
)  # fmt: skip
LIMITS = {"bf16": {"warm": 0.18}, "packed": {"cold": 0.5, "warm": 0.35}}
ROUNDS = 2  # at most: its encoder takes minutes
LIMIT_SECONDS = 3600
SAME = 0.1  # relative L2
PICTURE = layout.ROOT / "benchmarks" / "results" / "host.png"


def limits(kind: str) -> Mapping[str, float]:
    return LIMITS.get(kind, LIMITS["packed"])


def bench(rounds: int, host: Path) -> Verdict:
    if not has_own_encoder(host):
        why = "this ComfyUI has no H3 encoder of its own: set COMFYUI_PATH to ComfyUI 0.30 or newer"
        targets = [(None, f"{kind}, {shape}: {why}") for kind, shape in CASES]
        return Verdict("host", [why], targets, {})
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    rows = {}
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="host_") as kept:
        for kind, shape in CASES:
            file = single_file(kind)
            print(f"  {kind}, {shape} ", end="", flush=True)
            out = {side: Path(kept) / f"{side}.safetensors" for side in SIDES}
            found = take_turns(_cases(file, kind, shape, host, out), min(rounds, ROUNDS))
            rows[f"{kind}, {shape}"] = row(found, kind) | compared(out["ours"], out["theirs"], f"{kind}, {shape}")
    bars = {f"{name}, {what}": row["ratio"][what] for name, row in rows.items() for what in row["ratio"]}
    marks = {f"{name}, {what}": value for name in rows for what, value in limits(name.split(",")[0]).items()}
    charts.ratios(bars, marks, PICTURE, "Time to that of ComfyUI's own encoder, same file, same request")
    targets = [target for name, row in rows.items() for target in targets_of(name, row)]
    return Verdict("host", lines(rows), targets, {"layers": LAYERS, "rounds": min(rounds, ROUNDS), **rows})


def _cases(file: Path, kind: str, shape: str, host: Path, out: Mapping[str, Path]) -> dict[str, Callable[[], dict]]:
    options = ["--host", host, "--layers", LAYERS, "--tokenizer", bundled_tokenizer(host)]
    if kind != "bf16":
        options.append("--cold")

    def once(side: str) -> dict:
        if kind != "bf16":
            _forget(file)
        return run("measure_host.py", side, file, shape, *options, "--out", out[side], limit=LIMIT_SECONDS)

    return {side: partial(once, side) for side in SIDES}


def row(found: Mapping[str, Sequence[dict]], kind: str) -> dict:
    what = tuple(limits(kind))
    return {
        "tokens": {side: found[side][0]["tokens"] for side in SIDES},
        "seconds": {side: {name: median(found[side], name) for name in what} for side in SIDES},
        "ratio": {name: ratio(found["ours"], found["theirs"], name) for name in what},
        "peak": {side: median(found[side], "peak") for side in SIDES},
    }


def compared(ours: Path, theirs: Path, name: str) -> dict:
    """Raises RuntimeError when the two did not do the same work."""
    from safetensors.torch import load_file

    mine, others = load_file(ours)["hidden"], load_file(theirs)["hidden"]
    error = difference(mine, others) if mine.shape == others.shape else float("nan")
    if not error <= SAME:
        raise RuntimeError(
            f"bench host: expected the same conditioning of {name} from both encoders, got {list(mine.shape)} and "
            f"{list(others.shape)}, relative L2 {error:.3g}. This is an error of the benchmark or of an encoder: "
            "please report it."
        )
    return {"difference": error}


def targets_of(name: str, row: dict) -> list[Target]:
    return [
        at_most(f"{name}: {what}, time to ComfyUI's own encoder", row["ratio"][what], limit)
        for what, limit in limits(name.split(",")[0]).items()
    ]


def lines(rows: Mapping[str, dict]) -> list[str]:
    found = [
        f"{'file, request':<26}{'tokens':>7}{'cold':>9}{'theirs':>9}{'ratio':>7}{'warm':>9}{'theirs':>9}{'ratio':>7}"
        f"{'peak':>9}{'theirs':>9}  apart"
    ]
    for name, of in rows.items():
        cold, warm = (_cells(of, what) for what in ("cold", "warm"))
        peak = "".join(f"{of['peak'][side] / 1e9:>6.1f} GB" for side in SIDES)
        found.append(f"{name:<26}{of['tokens']['ours']:>7}{cold}{warm}{peak}  {of['difference']:.2g}")
    return found


def _cells(of: dict, what: str) -> str:
    if what not in of["ratio"]:
        return " " * 25
    return "".join(f"{of['seconds'][side][what]:>8.1f}s" for side in SIDES) + f"{of['ratio'][what]:>7.2f}"
