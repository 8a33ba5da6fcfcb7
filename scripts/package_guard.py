"""What the pack uses of ComfyUI's modules, looked up in a ComfyUI's sources by comfy-import-guard.

Contract: `problems(pack, host, folder)` makes a git copy of the host's Python files in `folder`, since the tool reads
ComfyUI from git, and returns what it says would break or may break.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import package_tools

ROOMS = ("comfy", "comfy_api", "comfy_api_nodes", "comfy_config", "comfy_execution", "comfy_extras", "app", "utils")
FILES = ("execution.py", "folder_paths.py", "nodes.py", "node_helpers.py", "server.py", "comfyui_version.py")
WHO = ("-c", "user.name=h3te", "-c", "user.email=h3te@localhost", "-c", "safe.directory=*", "-c", "gc.auto=0")


def problems(pack: Path, host: Path, folder: Path) -> list[str]:
    shutil.rmtree(folder, ignore_errors=True)
    _as_repository(host, folder / "cache" / "ComfyUI")
    installed = folder / "install" / "custom_nodes" / pack.name
    shutil.copytree(pack, installed, ignore=shutil.ignore_patterns("tests", "scripts", "benchmarks", ".git"))
    arguments = ["--cache-dir", str(folder / "cache"), "--offline", "--json", "check", "--no-update", "--strict"]
    arguments += ["--target", "HEAD", "--comfy-dir", str(folder / "install")]
    status, said = package_tools.run("comfy-import-guard", arguments, folder)
    return [] if status == 0 else [f"comfy-import-guard: expected nothing that breaks, got {_findings(said)}"]


def _as_repository(host: Path, copy: Path) -> None:
    for room in ROOMS:
        if (host / room).is_dir():
            shutil.copytree(host / room, copy / room, ignore=lambda _, names: [n for n in names if _left_out(n)])
    for file in FILES:
        if (host / file).is_file():
            shutil.copy(host / file, copy / file)
    for command in (["init", "--quiet"], ["add", "--all", "--force"], ["commit", "--quiet", "-m", "ComfyUI"]):
        subprocess.run(["git", *WHO, *command], cwd=copy, check=True)


def _left_out(name: str) -> bool:
    return name == "__pycache__" or ("." in name and not name.endswith(".py"))


def _findings(said: str) -> str:
    try:
        return json.dumps(json.loads(said[said.index("{") :]))[:1500]
    except ValueError:
        return said.strip()[-600:]
