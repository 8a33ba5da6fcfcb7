"""Puts several releases of transformers beside `.venv`, each in a folder of its own, without another torch.

`.comfyui/transformers/<version>/` holds that release and the few packages that it needs in another version than `.venv`
has; a process that finds the folder on PYTHONPATH takes those from there and everything else from `.venv`. A finished
folder carries a stamp; an interrupted one is begun anew. Standard library only.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import layout
import stamps
from package_installer import drop_cache, install, installed

FOLDER = layout.COMFY / "transformers"
_HUB_1 = ("huggingface_hub==1.33.0", "tokenizers==0.22.2", "httpx==0.28.1", "httpcore==1.0.9")
# Release -> what it needs that .venv has in another version. The last 4.x, the last 5.5, the first release with the
# position interpolation that H3 was released with, and the newest. 5.14 is for the patches: the vision tower of 5.9 to
# 5.14 is another again.
PACKAGES = {
    "4.57.6": ("huggingface_hub==0.36.2", "tokenizers==0.22.2"),
    "5.5.4": _HUB_1,
    "5.14.1": _HUB_1,
    "5.15.0": _HUB_1,
    "5.24.0": ("huggingface_hub==2.4.0", "tokenizers==0.23.3"),
}
PATCHED_VERSIONS = tuple(PACKAGES)
VERSIONS = tuple(version for version in PACKAGES if version != "5.14.1")
AGAIN = "python scripts/test_versions.py"
_STEP = "transformers"


def provide(version: str) -> Path | None:
    """The folder that holds this release, made if need be; None when `.venv` has it. Raises SetupError."""
    if installed(layout.site_packages()).get("transformers") == version:
        return None
    folder, wanted = FOLDER / version, (f"transformers=={version}", *PACKAGES[version])
    key = stamps.fingerprint(stamps.environment_fingerprint(layout.VENV), *wanted)
    if not stamps.is_done(folder, _STEP, key):
        _make(version, folder, wanted)
        stamps.write(folder, _STEP, key)
    return folder


def _make(version: str, folder: Path, wanted: tuple[str, ...]) -> None:
    print(f"  installing transformers {version} into {folder.relative_to(layout.ROOT)} ... ", end="", flush=True)
    partial = folder.with_name(f"{version}.partial")
    for old in (folder, partial):
        shutil.rmtree(old, ignore_errors=True)
    arguments = ["--no-deps", "--no-compile", "--target", str(partial), *wanted]
    install(f"transformers {version}", arguments, again=AGAIN)
    partial.rename(folder)
    drop_cache()
    print("done", flush=True)
