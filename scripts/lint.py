"""Every check that reads the project and runs nothing of it: style, types, dead code, duplicates, links, lengths.

One line per check, what it found below it; changes no file. Status 1 when any finds something. Programs that set-up
did not install are installed into .venv at the first run; where no package index has them, their checks are NOT RUN,
with the reason, and the others decide: `make lint ARGS=--all` counts that as a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import lint_boundaries
import lint_length
import lint_links
import lint_locales
import lint_map
import lint_tools
from package_installer import SetupError
from setup import enter


@dataclass(frozen=True)
class Check:
    """One question: what it asks, how it is answered (the problems found), and whether it needs a pinned program."""

    name: str
    what: str
    problems: Callable[[], list[str]]
    pinned: bool = False


def _program(name: str, what: str, tool: lint_tools.Tool) -> Check:
    return Check(name, what, lambda: lint_tools.run(tool), tool.pinned)


CHECKS = (
    _program("ruff", "rules", lint_tools.RUFF),
    _program("format", "ruff's formatting", lint_tools.RUFF_FORMAT),
    Check("boundaries", "imports between rooms", lint_boundaries.problems),
    Check("lengths", "files and functions", lint_length.problems),
    Check("links", "relative links in Markdown", lint_links.problems),
    Check("map", "the README's Map", lint_map.problems),
    Check("locales", "each text in each language", lint_locales.problems),
    _program("types", "basedpyright, strict in encoder/ and patches/", lint_tools.TYPES),
    _program("dead-code", "vulture", lint_tools.DEAD_CODE),
    _program("duplicates", "pylint's duplicate-code", lint_tools.DUPLICATES),
    _program("javascript", "oxlint", lint_tools.JAVASCRIPT),
)


def run(checks: Sequence[Check], all_must_run: bool = False) -> int:
    """Runs the checks and prints one line each; returns 1 when one failed, or was not run and had to be."""
    reason = _obstacle() if any(check.pinned for check in checks) else ""
    outcomes = [_outcome(check, reason if check.pinned else "") for check in checks]
    if reason and "NOT RUN" in outcomes:
        print(f"\nNOT RUN, because its programs could not be installed:\n{reason}")
    return int("FAIL" in outcomes or (all_must_run and "NOT RUN" in outcomes))


def _obstacle() -> str:
    try:
        lint_tools.provide()
    except SetupError as error:
        return str(error)
    return ""


def _outcome(check: Check, obstacle: str) -> str:
    started = time.monotonic()
    found = [] if obstacle else check.problems()
    outcome = "NOT RUN" if obstacle else "FAIL" if found else "PASS"
    print(f"  {outcome:<8}{check.name:<12}{check.what}, {time.monotonic() - started:.1f} s", flush=True)
    for problem in found:
        print(f"    {problem}")
    return outcome


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check what can be checked without running anything.")
    parser.add_argument("--only", nargs="+", choices=[check.name for check in CHECKS], help="these checks alone")
    parser.add_argument("--all", action="store_true", help="a check that cannot be run here is a failure")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _parsed()
    enter()
    sys.exit(run([check for check in CHECKS if not chosen.only or check.name in chosen.only], chosen.all))
