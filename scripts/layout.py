"""Where set-up puts things, all inside the clone, and the environment that keeps child processes inside it too.

Standard library only: read before `.venv` exists.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
COMFY = ROOT / ".comfyui"
PYPI_HOST = COMFY / "ComfyUI"
FOREIGN_BASE = COMFY / "base"  # base directory of a ComfyUI named by COMFYUI_PATH, which is never written into
TEMP = COMFY / "tmp"
PIP_CACHE = COMFY / "pip-cache"
OUTPUT = ROOT / "output"
LOGS = OUTPUT / "logs"
REQUIREMENTS = ROOT / "scripts" / "requirements"


def venv_python() -> Path:
    """The interpreter inside .venv."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_packages() -> Path | None:
    """The package folder of .venv, found without starting its interpreter; None when there is none."""
    return next(iter(VENV.glob("Lib/site-packages" if os.name == "nt" else "lib/python3*/site-packages")), None)


def in_venv() -> bool:
    """Whether this process already runs in the clone's environment."""
    return Path(sys.prefix).resolve() == VENV.resolve()


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of os.environ whose caches and temporary files lie in the clone, without a foreign Python path."""
    TEMP.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")}
    environment.update({name: str(TEMP) for name in ("TMPDIR", "TEMP", "TMP")})
    cache = COMFY / "cache"
    environment.update(
        XDG_CACHE_HOME=str(cache),
        HF_HOME=str(cache / "huggingface"),
        TORCH_HOME=str(cache / "torch"),
        HF_HUB_DISABLE_TELEMETRY="1",
        PYTHONUTF8="1",
    )
    # on busy cores, threads that spin while they wait for each other make small layers ten times slower
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.update(changes)
    return environment
