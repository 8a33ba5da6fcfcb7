"""What an endurance run shows: claims with their figures, a table of what was done, a plot of memory, and the JSON.

Contract: `keep(run, verdicts, ...)` writes report.json and memory.png and returns the claims; `close(claims, ...)`
prints every claim and returns the exit status.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from endurance_measure import growth
from endurance_run import Outcome, Run
from endurance_verdict import ROUNDING, Verdict

GROWTH = 0.02
WARM = 5  # the first of so many parts of the run
BY_CHANCE = 2  # handles and threads: a connection that is just ending, a pool's thread that starts late
TRACEBACK = "Traceback (most recent call last)"
Judged = tuple[Outcome, str, Verdict]


@dataclass(frozen=True)
class Claim:
    what: str
    passed: bool
    figure: str


def keep(run: Run, verdicts: Sequence[Judged], log: str, facts: dict, folder: Path) -> list[Claim]:
    folder.mkdir(parents=True, exist_ok=True)
    claims = [_ran(run), _equal(verdicts, facts), *_held(run)]
    report = {
        **facts,
        "claims": [asdict(claim) for claim in claims],
        "steps": [_row(outcome) for outcome in run.outcomes],
        "verdicts": [{"result": name, **asdict(found)} for _, name, found in verdicts if found.kind != "bit"],
        "at rest": [{"step": number, **asdict(found)} for number, found in run.rests],
        "busy": [{"step": number, **asdict(found)} for number, found in run.busy],
        "tracebacks in the log": log.count(TRACEBACK),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    _plot(run, folder / "memory.png")
    print("\n".join(["", *_table(run), ""]), flush=True)
    return claims


def close(claims: Sequence[Claim], folder: Path, seconds: float) -> int:
    """Prints all claims; the exit status is 1 when one failed or there is none."""
    for claim in claims:
        print(f"  {'PASS' if claim.passed else 'FAIL'}  {claim.what}: {claim.figure}")
    passed = sum(claim.passed for claim in claims)
    print(f"\nendurance: {passed} of {len(claims)} claims hold, {seconds / 60:.1f} min; {folder}", flush=True)
    return int(passed < len(claims) or not claims)


def _ran(run: Run) -> Claim:
    failed = [outcome for outcome in run.outcomes if outcome.state == "failed"]
    states = Counter(outcome.state for outcome in run.outcomes)
    figure = ", ".join(f"{count} {state}" for state, count in states.most_common())
    why = f"; first: step {failed[0].step.number}: {failed[0].why[:200]}" if failed else ""
    return Claim(f"{len(run.outcomes)} mixed steps end as they should", not failed, figure + why)


def _equal(verdicts: Sequence[Judged], facts: dict) -> Claim:
    kinds = Counter(found.kind for _, _, found in verdicts)
    wrong = [(name, found) for _, name, found in verdicts if found.kind == "wrong"]
    ratios = [found.figure for _, _, found in verdicts if found.kind == "rounding"]
    figure = f"{kinds['bit']} to the bit, {kinds['rounding']} within rounding after a reused prefix"
    figure += f" (up to {max(ratios):.3f} of at most {ROUNDING})" if ratios else ""
    figure += f", {facts['fresh encodes']} fresh encodes"
    figure += (
        f"; {len(wrong)} wrong, first {wrong[0][0]}: {wrong[0][1].why} ({wrong[0][1].figure:.3g})" if wrong else ""
    )
    return Claim(f"{len(verdicts)} results equal a fresh encode", bool(verdicts) and not wrong, figure)


def _held(run: Run) -> list[Claim]:
    """At rest, after warm-up."""
    last = run.outcomes[-1].step.number + 1 if run.outcomes else 0
    warm = [found for number, found in run.rests if number >= last / WARM]
    if len(warm) < 2:
        return [Claim("Memory at rest", False, f"{len(warm)} measurements after warm-up: the run is too short")]
    grown = growth([found.rss for found in warm])
    private = growth([found.private for found in warm])
    figure = (
        f"{grown * 100:+.2f} % (private {private * 100:+.2f} %), {warm[0].rss / 1e6:.0f} -> {warm[-1].rss / 1e6:.0f} MB"
    )
    claims = [Claim("Memory at rest grows by less than 2 % after warm-up", grown < GROWTH, figure)]
    for what in ("handles", "threads", "children", "temporary"):
        first, end = getattr(warm[0], what), getattr(warm[-1], what)
        allowed = BY_CHANCE if what in ("handles", "threads") else 0
        claims.append(Claim(f"No {what} left behind", end - first <= allowed, f"{first} -> {end}"))
    stray = sorted({path for found in warm for path in found.unfinished})
    claims.append(Claim("No unfinished file", not stray, ", ".join(stray[:3]) or "none"))
    return claims


def _table(run: Run) -> list[str]:
    rows = {}
    for outcome in run.outcomes:
        row = rows.setdefault(outcome.step.does, Counter())
        row[outcome.state] += 1
        row["seconds"] += outcome.seconds
    head = f"  {'what':<10} {'steps':>6} {'done':>6} {'stopped':>8} {'refused':>8} {'failed':>7} {'s each':>7}"
    lines = [head]
    for does, row in sorted(rows.items()):
        count = sum(row[state] for state in ("done", "stopped", "refused", "failed"))
        counts = f"{count:>6} {row['done']:>6} {row['stopped']:>8} {row['refused']:>8} {row['failed']:>7}"
        lines.append(f"  {does:<10} {counts} {row['seconds'] / count:>7.2f}")
    return lines


def _row(outcome: Outcome) -> dict:
    step = outcome.step
    how = {**asdict(step.settings), "kind": step.request.kind}
    found = {"state": outcome.state, "why": outcome.why, "said": outcome.said, "seconds": round(outcome.seconds, 3)}
    return {"step": step.number, "does": step.does, "detail": step.detail, **how, **found}


def _plot(run: Run, path: Path) -> None:
    """Memory at rest and just before, over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for label, found in (("before caches are cleared", run.busy), ("at rest", run.rests)):
        panel.plot([number for number, _ in found], [one.rss / 1e6 for _, one in found], marker="o", label=label)
    panel.plot([n for n, _ in run.rests], [one.private / 1e6 for _, one in run.rests], "--", label="at rest, private")
    panel.set(xlabel="steps", ylabel="MB", title="Memory of ComfyUI", ylim=(0, None))
    panel.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
