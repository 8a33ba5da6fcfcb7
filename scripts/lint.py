"""Style (ruff), formatting (ruff format) and the boundaries between rooms; changes nothing."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import layout
from setup import enter

# Top-level modules of ComfyUI; only nodes/ and patches/ may import them.
HOST_MODULES = frozenset(
    {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "folder_paths", "server", "execution", "node_helpers"}
)
# Room -> modules that it must not import. Relative imports are checked by the room they lead to.
FORBIDDEN = {
    "encoder": HOST_MODULES | {"nodes", "patches", "transformers", "torchvision"},
    "patches": frozenset({"nodes"}),
    "web": HOST_MODULES,
}


def imported(path: Path, room: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level module or room) of every import in a file, wherever in the file it stands."""
    depth = len(path.relative_to(room).parts)  # dots that lead from this file to the pack's root
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level > depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((node.lineno, name.split(".")[0]) for name in names)


def crossings(root: Path = layout.ROOT) -> list[str]:
    """Imports that cross a boundary, as "file:line: message"."""
    found = []
    for room, forbidden in FORBIDDEN.items():
        for path in sorted((root / room).rglob("*.py")):
            for line, name in imported(path, root / room):
                if name in forbidden:
                    found.append(f"{path.relative_to(root)}:{line}: {room}/ must not import {name}")
    return found


def main() -> int:
    """Runs all three; returns 1 when any finds something."""
    ruff = [str(layout.venv_python().with_name("ruff"))]
    failed = False
    for command in (["check", "--output-format", "concise"], ["format", "--check", "--output-format", "concise"]):
        failed |= subprocess.call([*ruff, *command, "."], cwd=layout.ROOT) != 0
    problems = crossings()
    print("\n".join(problems) if problems else "Boundaries between rooms: kept")
    return int(failed or bool(problems))


if __name__ == "__main__":
    argparse.ArgumentParser(description="Check style, formatting and boundaries between rooms.").parse_args()
    enter()
    sys.exit(main())
