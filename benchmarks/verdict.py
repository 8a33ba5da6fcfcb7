"""What a benchmark found: lines for people, targets met or missed, and figures for the result file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from machine import load_average, machine

RESULTS = Path(__file__).resolve().parent / "results"
Target = tuple["bool | None", str]  # met, missed, or None: could not be measured here


@dataclass(frozen=True)
class Verdict:
    name: str
    lines: list[str]
    targets: list[Target]
    figures: dict = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(met is not False for met, _ in self.targets)

    def text(self) -> str:
        marks = {True: "PASS", False: "MISS", None: "NOT MEASURED"}
        return "\n".join([*(f"  {line}" for line in self.lines), *(f"  {marks[m]}  {t}" for m, t in self.targets)])

    def write(self, load_before: float | None, folder: Path = RESULTS) -> Path:
        """results/<name>.json."""
        path = folder / f"{self.name}.json"
        body = {
            "machine": machine(),
            "load_average": {"before": load_before, "after": load_average()},
            "targets": [{"met": met, "target": text} for met, text in self.targets],
            "figures": rounded(self.figures),
        }
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8", newline="\n")
        return path


def at_most(what: str, found: float | None, limit: float, unit: str = "x") -> Target:
    """The target "`what` is at most `limit`"."""
    if found is None:
        return None, f"{what}: not known on this system (at most {limit:g}{unit})"
    return found <= limit, f"{what}: {found:.3g}{unit} (at most {limit:g}{unit})"


def rounded(value):
    """Figures to four digits: a committed file should not change in what is noise."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
