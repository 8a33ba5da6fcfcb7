"""What the parity walk prints and leaves behind: progress lines, report.json, report.md.

report.json: the machine, the request, `inputs` (ids and pixels equal), `rows` [{part, stage, kind, index, same_input,
accumulated}] with {max_abs, relative, limit} each, `against` [{part, max_abs, relative}], `memory` in bytes, `passed`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from demo_report import DEMO_WARNING, machine
from parity_parts import DECODER_INPUT, DEEPSTACK, LAYER, MERGER, Part
from parity_walk import Error, Row

TOWER = "whole vision tower"


@dataclass(frozen=True)
class Report:
    facts: dict
    inputs: dict[str, bool]
    rows: list[Row]
    against: list[tuple[Part, Error]]
    memory: dict
    is_demo: bool

    @classmethod
    def of(cls, first, other, request, ours, inputs, rows, against, peak, started: float) -> Report:
        """first, other: Checkpoint (other may be None); peak: MemoryPeak."""
        facts = machine("") | {
            "checkpoint": _short(first.path),
            "against": _short(other.path) if other else None,
            "dtype": str(ours.encoder.dtype)[6:],
            "patch_embedding": "Conv3d" if ours.convolution else "matrix product",
            "tokens": len(request.ids),
            "patches": {modality: len(patches) for modality, patches in request.patches.items()},
            "decoder_layers": ours.encoder.tap_layer,
            "seconds": round(time.perf_counter() - started, 1),
        }
        facts = {key: value for key, value in facts.items() if key != "comfyui"}
        facts["device"] = f"CPU, {facts['device'].split(', ')[-1]}" if "CPU" in facts["device"] else "CPU"
        memory = {"private_peak": peak.private, "resident_peak": peak.resident, "largest_part": ours.largest}
        return cls(facts, inputs, rows, against, memory, first.is_demo)

    @property
    def passed(self) -> bool:
        return all(self.inputs.values()) and all(row.passed for row in self.rows)

    def groups(self) -> Iterator[tuple[str, list[Row]]]:
        """Rows by kind, and what leaves the tower."""
        kinds = dict.fromkeys((row.part.stage, row.part.kind) for row in self.rows)
        for stage, kind in kinds:
            label = kind if stage == "decoder" else f"{stage}s: {kind}"
            yield label, [row for row in self.rows if (row.part.stage, row.part.kind) == (stage, kind)]
        for stage in dict.fromkeys(stage for stage, _ in kinds if stage != "decoder"):
            leaving = [r for r in self.rows if r.part.stage == stage and r.part.kind in (DEEPSTACK, MERGER)]
            yield f"{stage}s: {TOWER}", [Row(row.part, None, row.chained) for row in leaving]


def _short(path: Path) -> str:
    """A checkpoint's name; the released folders are all called text_encoder, so their parent tells them apart."""
    return f"{path.parent.name}/{path.name}" if path.name == "text_encoder" else path.name


class Progress:
    """One line per recorded pass in the terminal, and one per compared part."""

    def __init__(self, started: float):
        self.started = started

    def recorded(self, what: str) -> Callable[[Part], None]:
        print(f"  [{self._seconds()}] {what} ...", flush=True)

        def on_part(part: Part) -> None:
            if part.index is not None and part.index % 10 == 9:
                print(f"  [{self._seconds()}]   {part.name}", flush=True)

        return on_part

    def row(self, row: Row) -> None:
        same = "" if row.same_input is None else f"same input {figure(row.same_input)}; "
        verdict = "PASS" if row.passed else "FAIL"
        print(f"  [{self._seconds()}] {verdict}  {row.part.name}: {same}accumulated {figure(row.chained)}", flush=True)

    def _seconds(self) -> str:
        return f"{time.perf_counter() - self.started:6.1f} s"


def figure(error: Error) -> str:
    """An error for people."""
    if error.max_abs == 0 == error.relative:
        return "0 (bit-equal)"
    return f"{error.relative:.1e} (max {error.max_abs:.1e})"


def heading(tokens: int, request, ours, inputs: dict[str, bool]) -> str:
    """What is compared, before the first long step."""
    seen = "".join(f", {len(patches)} patches of {modality}s" for modality, patches in request.patches.items())
    lines = [f"parity: {tokens} tokens{seen}, {ours.encoder.tap_layer} decoder layers, {str(ours.encoder.dtype)[6:]}"]
    return "\n".join(lines + [f"  {'PASS' if same else 'FAIL'}  {what}" for what, same in inputs.items()])


def worst(rows: list[Row], which: str) -> Error | None:
    """The row of the largest error: `which` is same_input or chained; NaN counts as the largest."""
    errors = [error for row in rows if (error := getattr(row, which)) is not None]
    return max(errors, key=lambda e: float("inf") if e.relative != e.relative else e.relative, default=None)


def _table(report: Report) -> list[str]:
    lines = [
        "| | part | calls | same input, worst | limit | accumulated, worst | limit |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, rows in report.groups():
        same, chained = worst(rows, "same_input"), worst(rows, "chained")
        cells = ["", ""] if same is None else [figure(same), f"{same.limit:g}"]
        verdict = "PASS" if all(row.passed for row in rows) else "FAIL"
        cells = [verdict, label, str(len(rows)), *cells, figure(chained), f"{chained.limit:g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def memory_line(report: Report) -> str:
    memory = {key: None if value is None else value / 1e6 for key, value in report.memory.items()}
    private = "not known here" if memory["private_peak"] is None else f"{memory['private_peak']:,.0f} MB"
    return (
        f"peak memory above the start: {memory['resident_peak']:,.0f} MB with mapped files, {private} private "
        f"(activations, casts); the largest part is {memory['largest_part']:,.0f} MB as stored, one on each side"
    )


def write(report: Report, results: Path) -> None:
    """report.json and report.md."""
    results.mkdir(parents=True, exist_ok=True)
    (results / "report.json").write_text(json.dumps(_json(report), indent=2), encoding="utf-8")
    (results / "report.md").write_text("\n".join(_markdown(report)) + "\n", encoding="utf-8")


def _json(report: Report) -> dict:
    rows = [
        {
            "part": row.part.name,
            **asdict(row.part),
            "same_input": row.same_input and asdict(row.same_input),
            "accumulated": asdict(row.chained),
        }
        for row in report.rows
    ]
    against = [{"part": p.name, "max_abs": e.max_abs, "relative": e.relative} for p, e in report.against]
    body = {"demo_weights": report.is_demo, "inputs": report.inputs, "rows": rows, "against": against}
    return {"passed": report.passed, **report.facts, "memory": report.memory, **body}


def _markdown(report: Report) -> Iterator[str]:
    yield "# Parity with transformers, layer by layer\n"
    if report.is_demo:
        yield f"**{DEMO_WARNING}**\n"
    yield from (f"- {key}: {value}" for key, value in report.facts.items() if value not in (None, {}))
    yield from (f"- {what}: {'equal' if same else 'DIFFERENT'}" for what, same in report.inputs.items())
    yield f"- {memory_line(report)}\n"
    yield "Errors are relative L2 against transformers. Same input: one part alone. Accumulated: both sides chained"
    yield "from the request on. A decoder layer's state is its output, before DeepStack is added.\n"
    yield from _table(report)
    yield "\n| part | same input | accumulated |" + (" against |" if report.against else "")
    yield "|---|---|---|" + ("---|" if report.against else "")
    against = dict(report.against)
    for row in report.rows:
        cells = [row.part.name, "" if row.same_input is None else figure(row.same_input), figure(row.chained)]
        cells += [figure(against[row.part])] if report.against else []
        yield f"| {' | '.join(cells)} |"
    yield "\n![error by depth](plot.png)"


def _by_depth(report: Report) -> list[str]:
    """The other checkpoint's error where the towers end, and behind every fifth decoder layer and the last."""
    layers = report.facts["decoder_layers"]
    shown = [
        (part, error)
        for part, error in report.against
        if part.kind in (MERGER, DECODER_INPUT)
        or (part.kind == LAYER and (part.index % 5 == 0 or part.index == layers - 1))
    ]
    start = f"  {report.facts['against']} against {report.facts['checkpoint']}, by depth:"
    return [start, *(f"    {part.name}: {figure(error)}" for part, error in shown)] if shown else []


def closing(report: Report, results: Path) -> str:
    """The last words in the terminal."""
    lines = [""]
    for label, rows in report.groups():
        same, chained = worst(rows, "same_input"), worst(rows, "chained")
        verdict = "PASS" if all(row.passed for row in rows) else "FAIL"
        alone = "" if same is None else f"same input {figure(same)}, limit {same.limit:g}; "
        lines.append(
            f"  {verdict}  {label} x {len(rows)}: {alone}accumulated {figure(chained)}, limit {chained.limit:g}"
        )
    lines += _by_depth(report)
    failed = [row.part.name for row in report.rows if not row.passed]
    failed = [what for what, same in report.inputs.items() if not same] + failed
    verdict = f"FAIL: first in {failed[0]}, {len(failed)} in all" if failed else "PASS"
    lines += [f"  {memory_line(report)}", f"parity: {verdict}, in {report.facts['seconds']:.0f} s. Report: {results}"]
    if report.is_demo:
        lines.append(f"These were {DEMO_WARNING}. On your own file: make parity CHECKPOINT=/path/to/file-or-folder")
    return "\n".join(lines)
