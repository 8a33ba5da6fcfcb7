"""Reads graphs as ComfyUI's frontend saves them: nodes, links and subgraphs, widgets by position.

Contract: `scopes(workflow)` gives the top level and every subgraph definition; links of both saved forms become `Link`.
Node -10 stands for the inputs of a subgraph, -20 for its outputs. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workflow_definitions import Definitions

INPUTS, OUTPUTS = -10, -20
TOP = ""


@dataclass(frozen=True)
class Link:
    id: int
    origin: int
    origin_slot: int
    target: int
    target_slot: int
    kind: str


@dataclass(frozen=True)
class Scope:
    """One level of a workflow. `id`: of the subgraph definition, or TOP; inputs and outputs are the subgraph's own."""

    id: str
    name: str
    nodes: Mapping[int, dict]
    links: Mapping[int, Link]
    inputs: list[dict] = field(default_factory=list)
    outputs: list[dict] = field(default_factory=list)

    def origin_link(self, node: int, slot: int) -> Link | None:
        """The link that ends in this slot."""
        return next((link for link in self.links.values() if (link.target, link.target_slot) == (node, slot)), None)


def scopes(workflow: Mapping[str, Any]) -> dict[str, Scope]:
    definitions = (workflow.get("definitions") or {}).get("subgraphs") or []
    found = [_scope(TOP, "top level", workflow), *(_scope(each["id"], each["name"], each) for each in definitions)]
    return {scope.id: scope for scope in found}


def _scope(identity: str, name: str, graph: Mapping[str, Any]) -> Scope:
    nodes = {node["id"]: node for node in graph["nodes"]}
    links = [_link(link) for link in graph["links"]]
    return Scope(identity, name, nodes, {x.id: x for x in links}, graph.get("inputs") or [], graph.get("outputs") or [])


def _link(saved: Any) -> Link:
    if isinstance(saved, list):
        return Link(*saved[:6])
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return Link(*(saved[name] for name in names))


def linked(node: Mapping[str, Any]) -> dict[str, int]:
    """name -> link id of the inputs in use."""
    return {entry["name"]: entry["link"] for entry in node.get("inputs") or () if entry.get("link") is not None}


def widget_names(kind: str, definitions: Definitions, in_use: Mapping[str, int]) -> list[str]:
    """Names in the order in which their values are saved, with what the frontend adds after a widget."""
    added, found = definitions.companions(kind), []
    for entry in definitions.inputs(kind, tuple(in_use)):
        if entry.is_widget:
            found += [entry.name, *(f"{entry.name}/{name}" for name, _ in added.get(entry.name, ()))]
    return found


def saved_widgets(node: Mapping[str, Any], definitions: Definitions) -> dict[str, Any]:
    """name -> value by position, which is how every release of the frontend reads them back."""
    names = widget_names(node["type"], definitions, linked(node))
    return dict(zip(names, node.get("widgets_values") or (), strict=False))


def promoted_names(scope: Scope) -> list[str]:
    """A subgraph node's own widgets: the subgraph's inputs that lead to a widget inside, in their order."""
    return [entry["name"] for slot, entry in enumerate(scope.inputs) if _leads_to_widget(scope, slot)]


def promoted(instance: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """name -> value of those; `proxyWidgets` of older releases come before or after and have no value here."""
    return dict(zip(promoted_names(scope), instance.get("widgets_values") or (), strict=False))


def _leads_to_widget(scope: Scope, slot: int) -> bool:
    return any(
        target_input(scope, link).get("widget") is not None
        for link in scope.links.values()
        if (link.origin, link.origin_slot) == (INPUTS, slot) and link.target != OUTPUTS
    )


def target_input(scope: Scope, link: Link) -> dict:
    """The input entry that a link ends in; an empty one where the node has no such slot."""
    entries = scope.nodes.get(link.target, {}).get("inputs") or []
    return entries[link.target_slot] if link.target_slot < len(entries) else {}


def instances(workflow: Mapping[str, Any]) -> Iterator[dict]:
    """Every subgraph node, on whichever level it stands."""
    levels = scopes(workflow)
    for scope in levels.values():
        yield from (node for node in scope.nodes.values() if node["type"] in levels)
