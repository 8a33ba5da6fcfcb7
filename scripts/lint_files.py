"""Which files belong to the project: those that git knows, or would know after `git add`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import layout


def listed(pattern: str, root: Path = layout.ROOT) -> list[Path]:
    """Files that exist and match a glob on their name ("*.md"), in order; all but hidden folders' where `root` is no
    clone of its own, such as an archive unpacked inside of another one."""
    names = _known_to_git(root) if (root / ".git").exists() else None
    if names is None:
        names = [path.relative_to(root).as_posix() for path in root.rglob(pattern)]
    found = {root / name for name in names if not name.startswith((".", "output/"))}
    return sorted(path for path in found if path.match(pattern) and path.is_file())


def _known_to_git(root: Path) -> list[str] | None:
    """None where git is missing, or refuses the clone of another user."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in done.stdout.decode().split("\0") if name]
