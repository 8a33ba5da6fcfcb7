"""Programs that `make lint` runs: which, on what, and how they come into .venv.

Contract: `provide()` installs the pinned ones when the list changed, and raises SetupError where no index has them;
`run(tool)` -> the lines that it says, none when all is well. Their settings stand in pyproject.toml.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import layout
import stamps
from package_installer import drop_cache, install, missing

PACKAGES = layout.REQUIREMENTS / "lint.txt"
STEP = "lint"
AGAIN = "python scripts/lint.py"
PRODUCT = ("encoder", "nodes", "patches", "scripts", "worker.py")


@dataclass(frozen=True)
class Tool:
    """A program in .venv with its arguments; `pinned`: one of requirements/lint.txt, not of set-up."""

    program: str
    arguments: tuple[str, ...]
    pinned: bool = True


RUFF = Tool("ruff", ("check", "--output-format", "concise", "--quiet", "."), pinned=False)
RUFF_FORMAT = Tool("ruff", ("format", "--check", "--output-format", "concise", "--quiet", "."), pinned=False)
TYPES = Tool("basedpyright", ("--pythonpath", sys.executable))
DEAD_CODE = Tool("vulture", ())
DUPLICATES = Tool("pylint", ("--score=n", "--disable=all", "--enable=duplicate-code", *PRODUCT))
JAVASCRIPT = Tool("oxlint", ("--deny-warnings", "web"))


def provide() -> None:
    """Installs what the list names unless it was installed with this very list."""
    key = stamps.fingerprint(PACKAGES)
    if stamps.is_done(layout.VENV, STEP, key) and not missing([PACKAGES], layout.site_packages()):
        return
    print("lint: installing its programs ... ", end="", flush=True)
    install("lint", ["-r", str(PACKAGES)], again=AGAIN)
    drop_cache()
    stamps.write(layout.VENV, STEP, key)
    print("done", flush=True)


def run(tool: Tool) -> list[str]:
    """What it says when its exit status is not 0."""
    program = layout.venv_python().with_name(tool.program)
    done = subprocess.run(
        [str(program), *tool.arguments],
        cwd=layout.ROOT,
        env=layout.child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return (said or [f"{tool.program}: exit status {done.returncode}"]) if done.returncode else []
