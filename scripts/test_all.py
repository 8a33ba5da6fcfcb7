"""Runs every check of the project, one after another, and prints a table: PASS, FAIL, or NOT RUN with the reason.

A later check joins by one line in CHECKS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import layout
from setup import enter


@dataclass(frozen=True)
class Check:
    """One target: its script with arguments, and a function that says why it cannot run here ("" when it can)."""

    target: str
    script: tuple[str, ...]
    obstacle: Callable[[], str] = lambda: ""


def _no_foreign_host() -> str:
    return "" if os.environ.get("COMFYUI_PATH", "").strip() else "COMFYUI_PATH names no ComfyUI of yours"


def _no_host_with_h3() -> str:
    nodes = Path(os.environ.get("COMFYUI_PATH", "").strip()).expanduser() / "comfy_extras" / "nodes_minimax_h3.py"
    return _no_foreign_host() or ("" if nodes.is_file() else "the ComfyUI of COMFYUI_PATH has no H3 nodes (0.30 has)")


def _no_room_for_real_width() -> str:
    import psutil

    free = psutil.virtual_memory().available
    return "" if free > 8e9 else f"it takes 8 GB of free memory, and {free / 1e9:.1f} GB are free"


def _no_gloo() -> str:
    from torch import distributed

    served = distributed.is_available() and distributed.is_gloo_available()
    return "" if served else "this torch is built without torch.distributed and gloo"


def _no_atheris() -> str:
    import fuzz

    return fuzz.obstacle()


def _no_browser() -> str:
    import web_chromium
    from package_installer import SetupError

    try:
        web_chromium.provide()
    except SetupError as error:
        return str(error).splitlines()[0]
    return ""


CHECKS = (
    Check("lint", ("lint.py",)),
    Check("test", ("test.py",)),
    Check("demo", ("demo.py",)),
    Check("workflows", ("workflows.py",)),
    Check("parity", ("parity.py",)),
    Check("formats", ("formats.py",)),
    Check("budgets", ("budgets.py", "--demo")),
    Check("endurance", ("endurance.py", "--prompts", "60", "--kills", "4")),
    Check("test-wide", ("test_wide.py",), _no_room_for_real_width),
    Check("test-parallel", ("test_parallel.py",), _no_gloo),
    Check("test-versions", ("test_versions.py",)),
    Check("package", ("package.py",)),
    Check("fuzz", ("fuzz.py", "--minutes", "1"), _no_atheris),
    Check("test-web", ("test_web.py",), _no_browser),
    Check("test-host", ("test_host.py",), _no_foreign_host),
    Check("test-templates", ("test_templates.py",), _no_host_with_h3),
)


def run(check: Check) -> tuple[str, str, str]:
    """Runs one check; returns a row (target, outcome, seconds or reason)."""
    obstacle = check.obstacle()
    if obstacle:
        return check.target, "NOT RUN", obstacle
    print(f"\n== make {check.target}", flush=True)
    started = time.monotonic()
    status = subprocess.call([sys.executable, str(layout.ROOT / "scripts" / check.script[0]), *check.script[1:]])
    return check.target, "PASS" if status == 0 else "FAIL", f"{time.monotonic() - started:.0f} s"


def main() -> int:
    """Runs all; returns 1 when one failed."""
    rows = [run(check) for check in CHECKS]
    print()
    for target, outcome, detail in rows:
        print(f"  {outcome:<8} make {target:<15} {detail}")
    return int(any(outcome == "FAIL" for _, outcome, _ in rows))


if __name__ == "__main__":
    argparse.ArgumentParser(description="Run every check, one after another.").parse_args()
    enter()
    sys.exit(main())
