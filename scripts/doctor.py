"""Says what text encoder files and folders are, what is wrong with them and what to do, from their headers alone.

    python scripts/doctor.py PATH...          files or folders, anywhere
    python scripts/doctor.py PATH... --json   the same for programs: a list with one object for each path

`make doctor CHECKPOINT=PATH` is the same. The exit status is 1 when any of them has a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

import setup


def main() -> int:
    parsed = _arguments()
    with contextlib.redirect_stdout(sys.stderr):  # what set-up says is no part of the report
        setup.enter()
    return run(parsed)


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Say what text encoder files are and what is wrong with them.")
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or a folder")
    parser.add_argument("--vision", metavar="FILE", help="the vision file (mmproj) of a GGUF without one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def _expanded(path: Path) -> Path:
    """With the home folder for ~; a name that only looks like one is taken as it is."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def run(parsed: argparse.Namespace) -> int:
    """Print the reports; returns the exit status."""
    sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal cannot show
    from pack import h3te_module

    summary = h3te_module("encoder.checkpoint.summary")
    inspect = h3te_module("encoder").inspect_checkpoint
    vision = _expanded(Path(parsed.vision)) if parsed.vision else None
    reports = [inspect(_expanded(path), vision=vision) for path in parsed.paths]
    if parsed.json:
        print(json.dumps([summary.as_dict(report) for report in reports], indent=2))
    else:
        print("\n\n".join(summary.text(report) for report in reports))
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
