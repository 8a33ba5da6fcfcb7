"""Deletes what set-up, demo and tests made inside the clone, unless a model file above 1 GB was put there."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import comfy_install
import layout

_OWN_MODEL_LIMIT = 1e9  # bytes; nothing that this project generates is as large


def big_models() -> list[Path]:
    """Model files under .comfyui that are too large to be ours."""
    files = (path for base in layout.COMFY.glob("*/models") for path in base.rglob("*"))
    return [path for path in files if path.is_file() and path.stat().st_size > _OWN_MODEL_LIMIT]


def clean() -> None:
    """Deletes the folders, links first so that nothing behind one is touched."""
    kept = big_models()
    if kept:
        listed = "\n".join(f"    {path}" for path in kept)
        sys.exit(f"clean: expected only generated files in {layout.COMFY}, got\n{listed}\nMove them away first.")
    for base in (layout.PYPI_HOST, layout.FOREIGN_BASE):
        comfy_install.unlink_packs(base)
    for folder in (layout.COMFY, layout.VENV, layout.OUTPUT, *(layout.ROOT / name for name in _CACHES)):
        if folder.is_dir():
            shutil.rmtree(folder)
            print(f"clean: deleted {folder}")
    for cache in [path for room in layout.ROOT.iterdir() if room.is_dir() for path in room.rglob("__pycache__")]:
        shutil.rmtree(cache, ignore_errors=True)


_CACHES = (".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__")


def main(arguments: Sequence[str] | None = None) -> None:
    """Takes no arguments: one that is not understood, or a call for help, deletes nothing."""
    argparse.ArgumentParser(prog="clean.py", description=__doc__).parse_args(arguments)
    clean()


if __name__ == "__main__":
    main()
