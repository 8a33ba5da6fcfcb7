"""The registry's command line (comfy-cli) and comfy-import-guard, in a virtual environment of their own.

Contract: `provide()` makes it once in .comfyui/package; `run(name, arguments, cwd)` runs one of them there and returns
(exit status, output). They find no home, no settings and no account of the user's, report nothing, and ask nothing.
Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import layout
import stamps
from package_installer import drop_cache, explain, run_pip

FOLDER = layout.COMFY / "package"
HOME = FOLDER / "home"
PACKAGES = layout.REQUIREMENTS / "package.txt"
AGAIN = "python scripts/package.py"
_BIN = FOLDER / ("Scripts" if os.name == "nt" else "bin")
_STEP = "package"


def provide() -> None:
    """Raises SetupError when they cannot be installed."""
    key = stamps.fingerprint(stamps.environment_fingerprint(FOLDER), PACKAGES)
    if stamps.is_done(FOLDER, _STEP, key):
        return
    print(f"  installing comfy-cli into {FOLDER.relative_to(layout.ROOT)} ... ", end="", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, with_pip=True)
    arguments = ["install", "--no-input", "--disable-pip-version-check", "-r", str(PACKAGES)]
    status, output = run_pip(arguments, _BIN / Path(sys.executable).name)
    if status:
        raise explain("package", arguments, output, AGAIN)
    stamps.write(FOLDER, _STEP, key)
    drop_cache()
    print("done", flush=True)


def run(name: str, arguments: Sequence[str], cwd: Path) -> tuple[int, str]:
    """name: "comfy" or "comfy-import-guard"."""
    HOME.mkdir(parents=True, exist_ok=True)
    homes = dict.fromkeys(("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "XDG_CONFIG_HOME"), str(HOME))
    path = os.pathsep.join((str(_BIN), os.environ.get("PATH", "")))
    done = subprocess.run(
        [str(_BIN / name), *arguments],
        cwd=cwd,
        env=layout.child_environment(**homes, PATH=path, NO_COLOR="1", TERM="dumb", COLUMNS="200", DO_NOT_TRACK="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
    )
    return done.returncode, done.stdout
