"""Runs the tests in .venv after set-up; arguments go to pytest. The last line printed is pytest's own.

Files of tests are shared out to as many processes as cores and memory allow; `-n 0` keeps them in one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import layout
from setup import enter

MOST_PROCESSES = 4  # each starts a ComfyUI of its own: more gain little
PROCESS_BYTES = 3_000_000_000  # the most that one takes, with what it starts


def run_pytest(arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Runs pytest on the clone in this process; returns its exit status."""
    import pytest

    scripts = str(layout.ROOT / "scripts")
    sys.path = [folder for folder in sys.path if folder != scripts] + [scripts]  # its test.py must not shadow Python's
    os.chdir(layout.ROOT)
    kept = ["-o", "tmp_path_retention_count=1", "-o", "tmp_path_retention_policy=failed"]
    return int(pytest.main(["--durations=10", *kept, *arguments], plugins=list(plugins)))


def shared_out() -> list[str]:
    """Tests compute on one thread (tests/conftest.py), so that other cores are free for other files."""
    import psutil

    count = min(os.cpu_count() or 1, MOST_PROCESSES, psutil.virtual_memory().available // PROCESS_BYTES)
    return ["-n", str(count), "--dist", "loadfile"] if count > 1 else []


if __name__ == "__main__":
    enter()
    sys.exit(run_pytest([*shared_out(), *sys.argv[1:]]))
