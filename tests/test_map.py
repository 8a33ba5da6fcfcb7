"""The README's Map names what exists, and what exists is named."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNLISTED = {
    ".ci", ".gitattributes", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "README.md", "README_CN.md", "SECURITY.md", "pyproject.toml", "requirements-dev.txt", "requirements.txt",
}  # fmt: skip


def map_rows() -> list[list[str]]:
    """The paths of each row; a bare file name lies in the folder of the path before it."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Map")[1]
    rows = []
    for cell in re.findall(r"^\| (`[^|]+) \|", section, flags=re.MULTILINE):
        paths, folder = [], ""
        for path in re.findall(r"`([^`]+)`", cell):
            folder = path.rsplit("/", 1)[0] + "/" if "/" in path else folder
            paths.append(path if "/" in path else folder + path)
        rows.append(paths)
    return rows


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(listed.splitlines())


def test_map_names_only_what_exists():
    named = [path for row in map_rows() for path in row]
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_map_names_every_top_level_entry():
    named = {path.split("/")[0] for row in map_rows() for path in row}
    assert {path.split("/")[0] for path in tracked()} - named - UNLISTED == set()


def test_map_names_every_encoder_module():
    named = {path for row in map_rows() for path in row}
    modules = {path for path in tracked() if re.fullmatch(r"encoder/[a-z]+\.py", path)}
    assert modules - named == set()
