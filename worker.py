"""Starts a worker: `python worker.py CHECKPOINT [--ranks N] [--port 8189]`; --help lists everything.

docs/remote.md says how ComfyUI is told of it. It needs nothing of ComfyUI but the Python in which ComfyUI runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
NAME = "h3te"  # whatever the folder is called


def main() -> int:
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
    return importlib.import_module(f"{NAME}.encoder.parallel.worker").main(Path(__file__).resolve())


def run() -> int:
    """Ctrl+C before it serves, while PyTorch is imported or ranks meet; later the worker sees to it itself."""
    try:
        return main()
    except KeyboardInterrupt:
        sys.stderr.write("worker: ends, it was told to end\n")
        os._exit(130)  # a thread may wait for a rank that is gone


if __name__ == "__main__":
    sys.exit(run())
