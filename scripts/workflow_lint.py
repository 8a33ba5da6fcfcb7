"""comfy-lint (PyPI) on the API copies of the bundled workflows, against the node definitions carried as facts.

Contract: `object_info(definitions, graphs)` is a saved /object_info that comfy-lint can read: it knows no growing
inputs and no types that depend on each other, so these are written out flat, as the graphs use them; `problems(...)`
lints strictly, a warning counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workflow_definitions import Definitions, Input


def object_info(definitions: Definitions, graphs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    used: dict[str, set[str]] = {}
    for graph in graphs.values():
        for node in graph.values():
            used.setdefault(node["class_type"], set()).update(node["inputs"])
    return {kind: _entry(definitions, kind, tuple(names)) for kind, names in used.items() if kind in definitions}


def problems(graphs: Mapping[str, Mapping[str, Any]], definitions: Definitions, file: Path) -> Iterator[str]:
    """graphs: by name, in API format. The definitions are saved to `file` and read from there by comfy-lint itself."""
    from comfy_lint import lint_workflow
    from comfy_lint.schema import load_from_file

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(object_info(definitions, graphs), indent=1), encoding="utf-8")
    schema = load_from_file(str(file))
    for name, graph in graphs.items():
        for found in lint_workflow(graph, schema):
            yield f"{name}, node {found.node_id}: {found.message} ({found.rule})"


def _entry(definitions: Definitions, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    inputs = definitions.inputs(kind, names)
    sections = {"required": {}, "optional": {}}
    for entry in inputs:
        sections["required" if entry.required else "optional"][entry.name] = _declared(entry)
    return {"input": sections, "output": [_plain(output) for _, output in definitions.outputs(kind)]}


def _declared(entry: Input) -> list:
    if entry.kind in ("COMBO", "COMFY_DYNAMICCOMBO_V3"):
        return ["COMBO", {} if entry.choices is None else {"options": entry.choices}]
    return [_plain(entry.kind), {}]


def _plain(kind: str) -> str:
    return "*" if "," in kind or kind == "COMFY_MATCHTYPE_V3" else kind
