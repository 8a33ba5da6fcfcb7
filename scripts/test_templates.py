"""Puts our nodes into ComfyUI's own H3 templates and runs their encode part in your ComfyUI (0.30 or newer).

    COMFYUI_PATH=/path/to/ComfyUI python scripts/test_templates.py
    python scripts/test_templates.py --newest          fetch the newest templates again

Pass A exchanges CLIPLoader for our loader, pass B the two encode nodes as well, in subgraphs too. Links, widgets and
promoted widgets must be kept; each graph is then cut to what its conditioning needs and runs with the demo checkpoint,
stand-in VAEs and pictures of this project, and pass B must give pass A's hidden states bit for bit. The table goes to
output/templates/ as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import command
import layout
import setup

RESULTS = layout.OUTPUT / "templates"
PATTERNS = ("video_minimax_h3_*.json", "image_minimax_h3_t2i.json")
OLDEST = (0, 30)


@dataclass(frozen=True)
class Row:
    """What happened to one template in one pass. Counts are "kept/all"; `faults` is empty when all is well."""

    template: str
    stage: str
    nodes: int
    links: str
    widgets: str
    interface: str
    run: str
    faults: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="Put our nodes into ComfyUI's own H3 templates and run them.")
    parser.add_argument("--newest", action="store_true", help="fetch the newest templates, even if there is a copy")
    parsed = parser.parse_args()
    if not os.environ.get("COMFYUI_PATH", "").strip():
        sys.exit(
            "test-templates: expected COMFYUI_PATH to name a ComfyUI of 0.30 or newer, got nothing. Run `make "
            "test-templates COMFYUI_PATH=/path/to/ComfyUI`."
        )
    host = setup.enter()
    return command.status_of("test-templates", lambda: run(host, parsed.newest))


def run(host: Path, newest: bool) -> int:
    import comfy_install
    import template_fetch
    from comfy_server import ComfyServer

    _check_version(comfy_install.host_version(host))
    folder, version = template_fetch.provide(newest)
    templates = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if not templates:
        raise ValueError(f"expected H3 templates in {folder}, got none. Run it with --newest.")
    workflows = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in templates}
    folders = {
        "custom_nodes": [Path(__file__).with_name("host_nodes")],
        "text_encoders": [_text_encoders(workflows.values())],
    }
    with ComfyServer(host, model_folders=folders) as server:
        rows = _rows(server, workflows)
        title = f"{len(workflows)} templates of {template_fetch.PACKAGE} {version} on ComfyUI {server.version}"
    return _report(title, rows)


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if found < OLDEST:
        raise ValueError(
            f"expected ComfyUI 0.30 or newer, which has H3 nodes of its own, got {version}. Name another COMFYUI_PATH."
        )


def _text_encoders(workflows) -> Path:
    """A folder whose files have the names that the templates ask for, each the demo checkpoint as one file."""
    import demo_checkpoint
    from template_graph import scopes
    from template_swap import LOADER

    folder = layout.COMFY / "template_encoders"
    nodes = [node for workflow in workflows for scope in scopes(workflow).values() for node in scope.nodes.values()]
    for name in sorted({node["widgets_values"][0] for node in nodes if node["type"] == LOADER.old}):
        demo_checkpoint.make_single_file(folder / name)
    return folder


def _rows(server, workflows: dict[str, dict]) -> list[Row]:
    from workflow_definitions import Definitions

    definitions, rows = Definitions(server.object_info()), []
    for name, workflow in workflows.items():
        for row in _passes(server, name, workflow, definitions):
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def _passes(server, name: str, workflow: dict, definitions) -> Iterator[Row]:
    """One row a pass; a template without our encode nodes has the first alone."""
    import template_run
    from template_check import compare
    from template_swap import PASSES, swapped

    before, states = 0, None
    for stage, swaps in PASSES.items():
        after = swapped(workflow, swaps, definitions)
        verdict = compare(workflow, after, swaps, definitions)
        if before and verdict.nodes == before:
            return
        ran = template_run.run(server, f"h3te_template_{name}_{stage[0]}", after, definitions)
        faults = [*([] if verdict.nodes else ["no CLIPLoader of type minimax in it"]), *verdict.faults, *ran.faults]
        if states and ran.states and ran.states != states:
            faults.append("hidden states or tags differ from those of ComfyUI's own encode node")
        counts = [f"{sum(kept)}/{len(kept)}" for kept in (verdict.links, verdict.widgets, verdict.interface)]
        yield Row(name, stage, verdict.nodes, *counts, f"{ran.done}/{ran.there}", faults)
        before, states = verdict.nodes, ran.states


def _line(row: Row) -> str:
    end = "ok" if not row.faults else "FAULT"
    counts = f"{row.nodes:>5}  {row.links:>6} {row.widgets:>8} {row.interface:>9} {row.run:>7}"
    return "\n".join([f"  {row.template:<42} {row.stage:<26} {counts}  {end}", *(f"      {f}" for f in row.faults)])


def _report(title: str, rows: list[Row]) -> int:
    head = f"  {'template':<42} {'pass':<26} {'nodes':>5}  {'links':>6} {'widgets':>8} {'interface':>9} {'encode':>7}"
    failed = sum(bool(row.faults) for row in rows)
    closing = f"{len(rows) - failed} of {len(rows)} passes without a fault"
    text = "\n".join([title, "", head, *(_line(row) for row in rows), "", closing])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "report.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n{RESULTS / 'report.txt'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
