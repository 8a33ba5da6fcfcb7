"""The memory plan against the measured peak, ten request shapes at the real width on the CPU.

What the plan says before a request must be between 1.0 and 1.3 of what the request then takes. The allocator of the
measured process gives freed memory back at once: otherwise what it keeps for later would be measured too. What a
request keeps when its result is gone is code: oneDNN generates some for each product of another shape, and the plan
counts it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from given_checkpoint import bundled_tokenizer
from measure_plan import SHAPES
from rounds import GIVE_BACK, run, take_turns
from verdict import Verdict
from wide_files import bf16_folder

LAYERS = 2  # every layer takes the same, one after the other
LEAST, MOST = 1.0, 1.3


def bench(rounds: int, host: Path) -> Verdict:
    """One round: memory is the same in each."""
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    options = ("--layers", LAYERS, "--tokenizer", tokenizer)
    cases = {shape: partial(run, "measure_plan.py", folder, shape, *options, environment=GIVE_BACK) for shape in SHAPES}
    rows = {shape: found[0] for shape, found in take_turns(cases, 1).items()}
    for row in rows.values():
        row["plan_to_peak"] = None if row["peak"] is None else row["plan"] / row["peak"]
    return Verdict("plan", _lines(rows), [_target(shape, row["plan_to_peak"]) for shape, row in rows.items()], rows)


def _target(shape: str, found: float | None) -> tuple[bool | None, str]:
    if found is None:
        return None, f"{shape}: not known on this system"
    return LEAST <= found <= MOST, f"{shape}: plan to peak {found:.3g}x ({LEAST} to {MOST})"


def _lines(rows: dict[str, dict]) -> list[str]:
    lines = [f"{'request':<32}{'tokens':>8}{'plan':>10}{'peak':>10}{'kept':>10}{'plan to peak':>14}"]
    for shape, row in rows.items():
        peak, times = ("not known", "") if row["peak"] is None else (_mb(row["peak"]), f"{row['plan_to_peak']:.3f}")
        kept = "" if row["kept"] is None else _mb(row["kept"])
        lines.append(f"{shape:<32}{row['tokens']:>8}{_mb(row['plan']):>10}{peak:>10}{kept:>10}{times:>14}")
    return lines


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
