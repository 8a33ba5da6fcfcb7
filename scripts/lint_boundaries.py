"""The boundaries between rooms: who must not import whom. Contract: `problems(root)` -> "file:line: message" each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import layout

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


def problems(root: Path = layout.ROOT) -> list[str]:
    """Imports that cross a boundary."""
    found = []
    for room, forbidden in FORBIDDEN.items():
        for path in sorted((root / room).rglob("*.py")):
            for line, name in imported(path, root / room):
                if name in forbidden:
                    found.append(f"{path.relative_to(root)}:{line}: {room}/ must not import {name}")
    return found
