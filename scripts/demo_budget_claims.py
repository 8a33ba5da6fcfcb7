"""The demo's claim about partial loading: one request under three budgets of the running ComfyUI's own patcher.

Contract: as demo_claims. `start_budgets` may run while ComfyUI starts; what is measured is memory, and bits.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import budgets
from demo_claims import Claim
from given_checkpoint import Checkpoint

BUDGETS = ("10", "50", "all")
PARTS = {"10": "a tenth", "50": "half", "all": "all"}


def start_budgets(host: Path, checkpoint: Checkpoint) -> subprocess.Popen:
    of = budgets.Weights("demo", 50, (320, 256), 1, 1)
    return budgets.started(checkpoint.path, of, "mmap", BUDGETS, host, checkpoint.tokenizer)


def budget_claims(run: subprocess.Popen, checkpoint: Checkpoint) -> Iterator[Claim]:
    """Claim 6: what `start_budgets` measured."""
    from budgets_report import Row

    found = budgets.finished(run, checkpoint.path)
    for measured in found["rows"]:
        yield _claim(Row("bf16", found["weights"], measured), found["tokens"])


def _claim(row, tokens: int) -> Claim:
    found = row.found
    what = f"One request with {PARTS[found['budget']]} of the weights allowed on the device"
    peak = "" if found["peak"] is None else f"; peak {found['peak'] / 1e6:.1f} MB"
    figure = f"{tokens} tokens, {found['loaded'] / 1e6:.1f} of {row.weights / 1e6:.1f} MB loaded{peak}; "
    return Claim(6, what, not row.wrong, figure + ("; ".join(row.wrong) or "bit-equal to the encoder without ComfyUI"))
