"""Fetches ComfyUI's own workflow templates into the clone: comfyui-workflow-templates-json, which is never committed.

Contract: `provide(newest)` -> (folder of the .json files, version). Fetched once into `.comfyui/templates`; a newer one
only when asked for. Standard library only.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import layout
from package_installer import drop_cache, install, installed

PACKAGE = "comfyui-workflow-templates-json"
FOLDER = layout.COMFY / "templates"
AGAIN = "python scripts/test_templates.py"


def provide(newest: bool = False) -> tuple[Path, str]:
    """Raises SetupError when there is no copy and no package index answers."""
    if newest or PACKAGE not in installed(FOLDER):
        _fetch()
    return FOLDER / "comfyui_workflow_templates_json" / "templates", installed(FOLDER)[PACKAGE]


def _fetch() -> None:
    partial = FOLDER.with_name("templates.partial")
    shutil.rmtree(partial, ignore_errors=True)
    print(f"test-templates: fetching {PACKAGE} ...", flush=True)
    install("workflow templates", ["--no-deps", "--no-compile", "--target", str(partial), PACKAGE], again=AGAIN)
    shutil.rmtree(FOLDER, ignore_errors=True)
    partial.rename(FOLDER)
    drop_cache()
