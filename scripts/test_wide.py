"""Runs the tests at the released width (tests/wide): few layers, the whole vision tower, bf16, against transformers.

Writes random weights once to .comfyui/wide (13 GB, kept; `make clean` deletes them). Arguments go to pytest.
"""

from __future__ import annotations

import os
import sys

import setup
from test import run_pytest

# all cores: the test settings' single thread is for tiny weights
THREADS = str(os.cpu_count() or 1)
ARGUMENTS = ("-o", "norecursedirs=.*", "-s", "-v", "tests/wide")

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", THREADS)
    setup.enter()
    sys.exit(run_pytest([*ARGUMENTS, *sys.argv[1:]]))
