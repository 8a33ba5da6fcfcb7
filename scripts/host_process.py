"""Runs a ComfyUI's main.py and ends when the process that started it does, however that ended.

`python host_process.py <main.py> [arguments]`: standard input is a pipe held by the parent; its end is the sign to go.
Standard library only.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from pathlib import Path


def _leave_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    main = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(main).resolve().parent)
    runpy.run_path(main, run_name="__main__")
