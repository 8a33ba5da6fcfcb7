"""The zip that the registry hands to users: made by comfy-cli from what is committed, looked through, unpacked.

Contract: `make(folder)` clones HEAD into `folder`, has comfy-cli validate and pack it, and returns (zip, problems).
`wrong(names)` says what the zip has that users do not need, or lacks. Nothing is published.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

import layout
import package_tools

NEEDED = (
    "__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md",
    "worker.py", "encoder/__init__.py", "nodes/extension.py", "patches/__init__.py", "web/h3te.js",
    "locales/zh/nodeDefs.json", "web/docs/H3TELoadTextEncoder.md", "workflows/h3te_ref2va_images.json",
    "assets/icon.png",
)  # fmt: skip
UNWANTED = ("tests/", "benchmarks/", "scripts/", ".ci/", ".github/", "output/", "assets/demo/", "requirements-dev.txt")
MOST_BYTES = 3_000_000


def make(folder: Path) -> tuple[Path | None, list[str]]:
    """folder is emptied. Without a zip, the problems say why."""
    shutil.rmtree(folder, ignore_errors=True)
    trust = ["-c", "safe.directory=*"]
    subprocess.run(["git", *trust, "clone", "--quiet", "--no-hardlinks", str(layout.ROOT), str(folder)], check=True)
    problems = _validated(folder)
    status, said = package_tools.run("comfy", ("--skip-prompt", "--no-enable-telemetry", "node", "pack"), folder)
    zipped = folder / "node.zip"
    if status or not zipped.is_file():
        return None, [*problems, f"comfy node pack: expected node.zip, got status {status}: {said.strip()[-400:]}"]
    with zipfile.ZipFile(zipped) as held:
        names = held.namelist()
        problems += [f"damaged in the zip: {held.testzip()}"] if held.testzip() else []
    size = zipped.stat().st_size
    problems += [f"expected at most {MOST_BYTES} bytes of zip, got {size}"] if size > MOST_BYTES else []
    return zipped, [*problems, *wrong(names)]


def _validated(folder: Path) -> list[str]:
    status, said = package_tools.run("comfy", ("--skip-prompt", "--no-enable-telemetry", "node", "validate"), folder)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    bad = [line for line in lines if any(word in line.lower() for word in ("warning", "error", "missing", "invalid"))]
    if status or bad:
        return [f"comfy node validate: expected success and no warning, got status {status}: {bad or lines[-5:]}"]
    return []


def wrong(names: Iterable[str]) -> list[str]:
    """What a user has no use for, and what is not there."""
    held = list(names)
    extra = [name for name in held if name.startswith(UNWANTED)]
    lacking = [name for name in NEEDED if name not in held]
    problems = [f"expected nothing of {', '.join(UNWANTED)} in the zip, got {extra[:3]}"] if extra else []
    return problems + ([f"expected {lacking} in the zip, got none"] if lacking else [])


def unpack(zipped: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(zipped) as held:
        held.extractall(folder)
    return folder
