"""The README's Map names what exists, and what exists is named. Contract: `problems(root)` -> one text each."""

from __future__ import annotations

import re
from pathlib import Path

import layout
import lint_files

UNLISTED = {
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "README_CN.md", "SECURITY.md",
    "pyproject.toml", "requirements-dev.txt", "requirements.txt",
}  # fmt: skip


def problems(root: Path = layout.ROOT) -> list[str]:
    """Names without a file, entries of the root and modules of the encoder without a name."""
    named = {path for row in rows((root / "README.md").read_text(encoding="utf-8")) for path in row}
    tracked = {path.relative_to(root).as_posix() for path in lint_files.listed("*", root)}
    modules = {path for path in tracked if re.fullmatch(r"encoder/[a-z]+\.py", path)}
    entries = {path.split("/")[0] for path in tracked} - {path.split("/")[0] for path in named} - UNLISTED
    return [
        *(f"README.md, Map: expected what exists, got {path}" for path in sorted(named) if not (root / path).exists()),
        *(
            f"README.md, Map: expected a row that names {path}, got none"
            for path in sorted(entries | (modules - named))
        ),
    ]


def rows(readme: str) -> list[list[str]]:
    """The paths of each row of the Map; a bare file name lies in the folder of the path before it."""
    found = []
    for cell in re.findall(r"^\| (`[^|]+) \|", readme.split("## Map")[1], flags=re.MULTILINE):
        paths, folder = [], ""
        for path in re.findall(r"`([^`]+)`", cell):
            folder = path.rsplit("/", 1)[0] + "/" if "/" in path else folder
            paths.append(path if "/" in path else folder + path)
        found.append(paths)
    return found
