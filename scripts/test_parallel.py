"""Runs the tests that start processes of their own (tests/parallel): 2 and 4 ranks on this machine's CPU, over gloo.

Minutes: each rank is a process of about 0.4 GB. Arguments go to pytest.
"""

from __future__ import annotations

import sys

from setup import enter
from test import run_pytest

ARGUMENTS = ("-o", "norecursedirs=.*", "tests/parallel")

if __name__ == "__main__":
    enter()
    sys.exit(run_pytest([*ARGUMENTS, *sys.argv[1:]]))
