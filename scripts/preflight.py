"""What must be true before set-up starts, each with one explaining error. Standard library only."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import layout
from package_installer import SetupError

OLDEST_PYTHON = (3, 10)
SPACE_CPU_GB = 3.0  # measured: 1.7 GB stays; downloads lie beside it meanwhile
SPACE_CUDA_GB = 10.0  # estimated from the wheels of the CUDA libraries, not measured
SPACE_HOST_GB = 0.2


def check_python(version: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Refuses a Python that the packages no longer support."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        wanted, got = ".".join(map(str, OLDEST_PYTHON)), ".".join(map(str, version[:2]))
        raise SetupError(
            f"set-up: expected Python {wanted} or newer, got {got} ({sys.executable}). Install a newer Python and name "
            "it: `make setup PYTHON=python3.12`, or `python3.12 scripts/setup.py`."
        )


def check_venv_module(available: bool | None = None) -> None:
    """Refuses a Python without venv and ensurepip, as Debian ships it."""
    if available is None:
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401

            available = True
        except ImportError:
            available = False
    if not available:
        minor = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"set-up: expected Python's venv module, and {sys.executable} has none (Debian and Ubuntu package it "
            f"apart). Run `sudo apt install python{minor}-venv`, or use another Python: "
            "`make setup PYTHON=/path/to/python3`."
        )


def check_space(needed_gb: float, what: str, folder: Path = layout.ROOT) -> None:
    """Refuses to start what the disk cannot hold."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < needed_gb:
        raise SetupError(
            f"set-up, {what}: expected {needed_gb:.1f} GB free on the disk of {folder}, got {free:.1f} GB. "
            "Free some space, or clone onto a larger disk, and run set-up again."
        )


def foreign_host() -> Path | None:
    """The ComfyUI that COMFYUI_PATH names, checked; None when the variable is unset or empty."""
    value = os.environ.get("COMFYUI_PATH", "").strip()
    if not value:
        return None
    path = Path(value).expanduser().resolve()
    lacking = [name for name in ("main.py", "folder_paths.py", "comfy/sd.py") if not (path / name).is_file()]
    if lacking:
        nested = path / "ComfyUI"
        hint = f"Did you mean {nested}? " if (nested / "main.py").is_file() else ""
        raise SetupError(
            f"set-up: expected COMFYUI_PATH to be a ComfyUI folder, got {value}, which "
            f"{_lack(path, lacking[0])}. {hint}Name the folder that holds "
            "main.py, or unset COMFYUI_PATH to use a private ComfyUI inside the clone."
        )
    return path


def _lack(path: Path, name: str) -> str:
    if path.is_dir():
        return f"has no {name}"
    return "is a file" if path.exists() else "does not exist"
