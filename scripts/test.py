"""Runs the tests in .venv after set-up; arguments go to pytest. The last line printed is pytest's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import layout
from setup import enter


def run_pytest(arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Runs pytest on the clone in this process; returns its exit status."""
    import pytest

    scripts = str(layout.ROOT / "scripts")
    sys.path = [folder for folder in sys.path if folder != scripts] + [scripts]  # its test.py must not shadow Python's
    os.chdir(layout.ROOT)
    kept = ["-o", "tmp_path_retention_count=1", "-o", "tmp_path_retention_policy=failed"]
    return int(pytest.main(["--durations=10", *kept, *arguments], plugins=list(plugins)))


if __name__ == "__main__":
    enter()
    sys.exit(run_pytest(sys.argv[1:]))
