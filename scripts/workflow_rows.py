"""The rows of `make workflows`: what was checked, how much of it, and every problem.

Contract: each function yields `Row`s and raises nothing for a workflow that is wrong; `graphs` and `saved` are the API
copies and the UI files by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import layout
import workflow_checks
import workflow_conditioning
import workflow_definitions
import workflow_encode
import workflow_files
import workflow_lint
from comfy_client import PromptFailed, ValidationError
from workflow_definitions import Definitions

RESULTS = layout.OUTPUT / "workflows"
Saved = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """what: the claim; size: what it was checked on; problems: none when it holds."""

    what: str
    size: str
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems


def read(folder) -> Saved:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def static_rows(saved: Saved, graphs: Saved, known: Definitions) -> Iterator[Row]:
    """What needs no ComfyUI."""
    files = workflow_files.expected()
    stale = [f"{path.name}: differs; run `make workflows ARGS=--write`" for path in workflow_files.stale()]
    yield Row("files are what scripts/workflow_graphs.py says", f"{len(files)} files", tuple(stale))
    links = sum(len(workflow["links"]) for workflow in saved.values())
    yield _row("links join outputs and inputs of their type", f"{links} links", saved, workflow_checks.link_problems)
    ours = [node for workflow in saved.values() for node in workflow["nodes"] if workflow_checks.is_ours(node)]
    models = sum(map(workflow_checks.models, saved.values()))
    yield _row("model files have their downloads", f"{models} files", saved, workflow_checks.model_problems)
    nodes = [node for workflow in saved.values() for node in workflow["nodes"]]
    yield _row("nodes lie in their groups, none overlap", f"{len(nodes)} nodes", saved, workflow_checks.layout_problems)
    kinds = {node["type"] for node in nodes if node not in ours}

    def core(workflow: dict) -> Iterable[str]:
        return workflow_checks.node_problems(workflow, known, lambda node: not workflow_checks.is_ours(node))

    size = f"{len(nodes) - len(ours)} nodes, {len(kinds)} types, {_widgets(saved, ours=False)} widgets"
    yield _row(f"core nodes as ComfyUI {known.comfyui} of {known.date} has them", size, saved, core)
    lint = tuple(workflow_lint.problems(graphs, known, RESULTS / "object_info.json"))
    yield Row("comfy-lint finds nothing in the API copies", f"{sum(map(len, graphs.values()))} nodes", lint)


def live_rows(saved: Saved, known: Definitions, live: Definitions) -> Iterator[Row]:
    """The nodes against what a running ComfyUI says."""
    host = f"ComfyUI {live.comfyui}"
    kinds = [kind for kind in known.nodes if kind.startswith(workflow_definitions.OURS)]
    size = f"{len(kinds)} types, {sum(len(known.inputs(kind, None)) for kind in kinds)} inputs"
    found = tuple(workflow_checks.definition_problems(known, live))
    yield Row(f"our nodes in {host} are as carried", size, found)

    def ours(workflow: dict) -> Iterable[str]:
        return workflow_checks.node_problems(workflow, live, workflow_checks.is_ours)

    def core(workflow: dict) -> Iterable[str]:
        return workflow_checks.node_problems(
            workflow, live, lambda node: not workflow_checks.is_ours(node) and node["type"] in live, exact=False
        )

    nodes = sum(workflow_checks.is_ours(node) for workflow in saved.values() for node in workflow["nodes"])
    size = f"{nodes} nodes, {_widgets(saved, ours=True)} widgets"
    yield _row(f"our nodes fit {host}: sockets, widgets, values", size, saved, ours)
    used = {node["type"] for workflow in saved.values() for node in workflow["nodes"]}
    lacking = sorted(kind for kind in used if kind not in live)
    there = sum(not kind.startswith(workflow_definitions.OURS) for kind in used - set(lacking))
    size = f"{there} types" + (f"; it lacks {', '.join(lacking)}" if lacking else "")
    yield _row(f"core nodes fit {host} where it has them", size, saved, core)


def encode_rows(server, graphs: Saved, types: set[str], measured: dict[str, Any]) -> Iterator[Row]:
    """Each encode part runs; its CONDITIONING and LATENT against the host's own. measured: collects the latter."""
    recorded = workflow_conditioning.kept() if workflow_conditioning.FILE.is_file() else {"workflows": {}}
    for name, graph in workflow_encode.encoding(graphs).items():
        try:
            ours, theirs = workflow_conditioning.measure(server, graph, types)
        except (PromptFailed, ValidationError, TimeoutError, ValueError) as error:
            yield Row(f"{name} encodes", "", (str(error),))
            continue
        size = f"{workflow_conditioning.count(ours)} facts"
        against = f"ComfyUI {recorded.get('comfyui')}'s own H3 nodes, recorded"
        if name in recorded["workflows"]:
            found = tuple(workflow_conditioning.differences(ours, recorded["workflows"][name]))
            yield Row(f"{name}: as {against}", size, found)
        else:
            yield Row(f"{name}: as recorded", size, ("nothing is recorded; run `make workflows ARGS=--record`",))
        if theirs is not None:
            measured[name] = theirs
            found = tuple(workflow_conditioning.differences(ours, theirs))
            yield Row(f"{name}: as this ComfyUI's own H3 nodes, live", size, found)


def _row(what: str, size: str, saved: Saved, check) -> Row:
    return Row(
        what, size, tuple(f"{name}: {problem}" for name, workflow in saved.items() for problem in check(workflow))
    )


def _widgets(saved: Saved, ours: bool) -> int:
    nodes = (node for workflow in saved.values() for node in workflow["nodes"])
    return sum(len(node["widgets_values"]) for node in nodes if workflow_checks.is_ours(node) == ours)
