"""Unpacking a 5120 x 25600 matrix (the largest of a layer) to bfloat16: ours against what ComfyUI and gguf do on a CPU.

comfy-kitchen, which newer ComfyUI releases bring along, is taken from .venv when it is there and else installed into
.comfyui (under 1 MB); where that fails, its comparisons are left out and a line says so.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import layout
import stamps
from measure_unpack import DTYPE, FORMATS, GGML_SCALES, SHAPE
from package_installer import SetupError, drop_cache, install
from rounds import GENERATED, median, ratio, run, take_turns
from verdict import Verdict, at_most

KITCHEN = "comfy-kitchen==0.2.31"
AGAIN = "python scripts/bench.py unpack"
MATRIX_BYTES = SHAPE[0] * SHAPE[1] * DTYPE.itemsize
AT_LEAST_AS_FAST = ("nvfp4", "int8_convrot")
MEMORY_LIMIT = 1.1  # of the matrix, the matrix included
SAME = 1e-2  # of the norms: the other side rounds to bfloat16 before it multiplies


def bench(rounds: int, host: Path) -> Verdict:
    folder, missing = kitchen()
    against = {name: "gguf, numpy" if name in GGML_SCALES else "comfy-kitchen" for name in FORMATS}
    cases = {
        name: {side: partial(_measured, side, name, folder) for side in ("ours", "theirs")}
        for name in FORMATS
        if name in GGML_SCALES or not missing
    }
    alone = {name: {"ours": partial(_measured, "ours", name, None)} for name in FORMATS if name not in cases}
    found = {
        name: take_turns(sides, rounds if name in AT_LEAST_AS_FAST else min(rounds, 2))
        for name, sides in {**cases, **alone}.items()
    }
    rows = {name: _row(name, **found[name]) | {"against": against[name]} for name in FORMATS}
    targets = [_speed(rows[name], name) for name in AT_LEAST_AS_FAST]
    targets += [at_most(f"{name}: peak memory to the matrix", row["peak_to_matrix"], MEMORY_LIMIT)
                for name, row in rows.items()]  # fmt: skip
    figures = {"matrix_bytes": MATRIX_BYTES, **rows}
    return Verdict("unpack", [*missing, *_lines(rows)], targets, figures)


def _speed(row: dict, name: str) -> tuple[bool | None, str]:
    return at_most(f"{name}: seconds to comfy-kitchen's", row.get("seconds_to_theirs"), 1.0)


def _measured(side: str, name: str, folder: Path | None) -> dict:
    return run("measure_unpack.py", side, name, extra=folder)


def _row(name: str, ours: Sequence[dict], theirs: Sequence[dict] | None = None) -> dict:
    row = {"seconds": median(ours, "seconds"), "peak_to_matrix": _peak(ours)}
    if theirs is None:
        return row
    _check_same(ours[0]["norm"], theirs[0]["norm"], name)
    return row | {
        "their_seconds": median(theirs, "seconds"),
        "seconds_to_theirs": ratio(ours, theirs, "seconds"),
        "their_peak_to_matrix": _peak(theirs),
    }


def _peak(rounds: Sequence[dict]) -> float | None:
    return None if rounds[0]["peak"] is None else median(rounds, "peak") / MATRIX_BYTES


def _check_same(ours: float, theirs: float, name: str) -> None:
    if not abs(ours - theirs) <= SAME * theirs:
        raise RuntimeError(
            f"bench unpack: expected both sides to unpack the same {name} matrix, got norms {ours:.6g} and "
            f"{theirs:.6g}. This is an error of the benchmark or of the encoder: please report it."
        )


def _lines(rows: dict[str, dict]) -> list[str]:
    lines = [f"{'':<14}{'ours':>8}{'theirs':>9}{'ratio':>7}{'peak':>7}{'theirs':>8}  against (peak: of the matrix)"]
    for name, row in rows.items():
        cells = [f"{name:<14}{row['seconds']:>7.2f}s"]
        if "their_seconds" in row:
            cells.append(f"{row['their_seconds']:>8.2f}s{row['seconds_to_theirs']:>7.2f}")
            cells.append(f"{_figure(row['peak_to_matrix']):>7}{_figure(row['their_peak_to_matrix']):>8}")
            cells.append(f"  {row['against']}")
        else:
            cells.append(f"{'':>16}{_figure(row['peak_to_matrix']):>7}")
        lines.append("".join(cells))
    return lines


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def kitchen() -> tuple[Path | None, list[str]]:
    """(folder to put on the path, or None when .venv has it; a line that says why it is missing)."""
    if importlib.util.find_spec("comfy_kitchen"):
        return None, []
    folder = GENERATED / "comfy-kitchen"
    key = stamps.fingerprint(stamps.environment_fingerprint(layout.VENV), KITCHEN)
    if stamps.is_done(folder, "comfy-kitchen", key):
        return folder, []
    shutil.rmtree(folder, ignore_errors=True)
    try:
        install("comfy-kitchen", ["--no-deps", "--target", str(folder), KITCHEN], again=AGAIN)
    except SetupError as error:
        return None, [f"comfy-kitchen could not be installed, so nothing is compared with it: {error}"]
    drop_cache()
    stamps.write(folder, "comfy-kitchen", key)
    return folder, []
