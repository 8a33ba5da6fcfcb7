"""Installs torch and its two companions: the CPU build unless an NVIDIA GPU is found. Standard library only.

`H3TE_TORCH_INDEX` (or --torch-index) names the wheel index to take them from; without it pip's own configuration
decides. On Windows and macOS the default build is the CPU one; on Linux it is the CUDA one, which works without a GPU
but is several GB larger.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable

import layout
import preflight
import torchvision_shim
from package_installer import SetupError, diagnose, explain, install, installed, run_pip, wanted

TORCH = layout.REQUIREMENTS / "torch.txt"
COMPANIONS = layout.REQUIREMENTS / "companions.txt"


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver answers and lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU 0" in listed.stdout


def torch_index() -> list[str]:
    """The pip arguments that name the user's wheel index, or nothing."""
    index = os.environ.get("H3TE_TORCH_INDEX", "").strip()
    return ["--index-url", index] if index else []


def candidates(gpu: bool, system: str | None = None) -> list[list[str]]:
    """pip arguments to try in this order; each is a complete request for torch."""
    plain = list(wanted(TORCH).values())
    index = torch_index()
    if gpu or index or (system or platform.system()) != "Linux":
        return [[*index, *plain]]
    # A configured index or folder may hold CPU builds, which carry "+cpu"; the default one has CUDA builds for Linux.
    return [[f"{requirement}+cpu" for requirement in plain], plain]


def install_torch(gpu: bool, say: Callable[[str], None]) -> None:
    """Installs torch, most suitable build first; raises SetupError when no build installs."""
    requests = candidates(gpu)
    if "torch" in installed(layout.site_packages()):  # perhaps the other build, which would satisfy the same request
        run_pip(["uninstall", "--yes", "torch"])
    for number, request in enumerate(requests):
        command = ["install", "--no-input", "--disable-pip-version-check", *request]
        status, output = run_pip(command)
        if status == 0:
            return
        if number + 1 == len(requests) or diagnose(output) not in ("version", "other"):
            raise explain("torch", command, output)
        preflight.check_space(
            preflight.SPACE_CUDA_GB, "torch with CUDA, for want of a CPU build (see H3TE_TORCH_INDEX)"
        )
        say(
            "no CPU build on pip's indexes: taking the default Linux build, which brings CUDA (several GB). "
            "To avoid that, set H3TE_TORCH_INDEX to PyTorch's CPU wheel index (pytorch.org, Get Started) and run again."
        )


def install_companions() -> None:
    """Installs torchvision and torchaudio beside torch; applies the shim only where their import fails."""
    install("torchvision and torchaudio", ["--no-deps", *torch_index(), "-r", str(COMPANIONS)])
    python = layout.venv_python()
    if torchvision_shim.imports(python):
        return
    torchvision_shim.apply(layout.site_packages())
    if not torchvision_shim.imports(python):
        raise SetupError(
            "set-up, torchvision: expected torchvision and torchaudio to import beside torch, and they do not, with or "
            f'without their native libraries. Run `{python} -c "import torchvision, torchaudio"` to see why, or delete '
            ".venv and run set-up again."
        )


def torch_is_cuda_build() -> bool:
    """Whether the installed torch is a CUDA build, read from its version file (importing it costs seconds)."""
    site = layout.site_packages()
    version = site / "torch" / "version.py" if site else None
    if version is None or not version.is_file():
        return False
    lines = version.read_text(encoding="utf-8").splitlines()
    return any(line.startswith("cuda") and not line.rstrip().endswith("None") for line in lines)
