"""The bundled workflows as files: what belongs in each, and which of them differ from it.

Contract: `expected()` maps path -> text of workflows/*.json (UI format) and tests/workflow_api/*.json (API format), all
made from scripts/workflow_graphs.py; `stale()` names those that differ; `write()` brings them up to date. Thumbnails
are made by scripts/workflow_thumbnails.py. Standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import layout
import workflow_graphs

SAVED = layout.ROOT / "workflows"
SENT = layout.ROOT / "tests" / "workflow_api"


def expected() -> dict[Path, str]:
    found = {}
    for graph in workflow_graphs.graphs():
        found[SAVED / f"{graph.name}.json"] = _text(graph.saved())
        found[SENT / f"{graph.name}.json"] = _text(graph.sent())
    return found


def stale() -> list[Path]:
    """Files that are absent, differ, or belong to no workflow."""
    wanted = expected()
    differ = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return differ + [path for folder in (SAVED, SENT) for path in folder.glob("*.json") if path not in wanted]


def write() -> list[Path]:
    """Writes what is stale; returns it."""
    changed, wanted = stale(), expected()
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8", newline="\n")
        else:
            path.unlink()
    return changed


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
