"""Puts our nodes in the place of ComfyUI's in a saved workflow, the way a user of the frontend does.

Contract: `swapped(workflow, swaps, definitions)` is a copy in which every node of a swap's old type has the new one, in
subgraphs too. Without `renamed` nothing but the type changes: the frontend then finds inputs by name and widget values
by position. With it the node is exchanged for a fresh one: each link is made again to the input of the corresponding
name (from the subgraph's own input as well), each widget is set again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from template_graph import instances, linked, saved_widgets
from workflow_definitions import Definitions


@dataclass(frozen=True)
class Swap:
    """`renamed`: input of the old node -> input of the new one. `values`: widget -> {old value: new value}. `dropped`:
    widgets that the new node has no use for, with the value that makes the exchange right; other nodes are left."""

    old: str
    new: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    dropped: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type_only(self) -> bool:
        return not (self.renamed or self.values or self.dropped)

    def applies(self, node: Mapping[str, Any], definitions: Definitions) -> bool:
        if node["type"] != self.old:
            return False
        widgets = saved_widgets(node, definitions) if self.dropped else {}
        return all(widgets.get(name) == value for name, value in self.dropped.items())

    def name(self, old: str) -> str:
        return self.renamed.get(old, old)

    def value(self, name: str, old: Any) -> Any:
        return self.values.get(name, {}).get(old, old)


LOADER = Swap(
    "CLIPLoader",
    "H3TELoadTextEncoder",
    renamed={"clip_name": "text_encoder"},
    values={"device": {"default": "auto"}},
    dropped={"type": "minimax"},
)
REFERENCES = Swap("MiniMaxH3ReferenceToVideo", "H3TEEncodeReferences")
KEYFRAMES = Swap("MiniMaxH3ImageToVideo", "H3TEEncodeKeyframes")
PASSES = {"A: loader": (LOADER,), "B: loader and encode nodes": (LOADER, REFERENCES, KEYFRAMES)}


def swapped(workflow: Mapping[str, Any], swaps: Sequence[Swap], definitions: Definitions) -> dict[str, Any]:
    changed = copy.deepcopy(dict(workflow))
    for graph in (changed, *((changed.get("definitions") or {}).get("subgraphs") or ())):
        for node in graph["nodes"]:
            swap = next((swap for swap in swaps if swap.applies(node, definitions)), None)
            if swap is not None and swap.type_only:
                node["type"] = swap.new
            elif swap is not None:
                _exchange(graph["links"], node, swap, definitions)
                _promote_again(changed, graph["id"], node["id"], swap)
    return changed


def _exchange(links: list, node: dict, swap: Swap, definitions: Definitions) -> None:
    ends = {swap.name(name): link for name, link in linked(node).items()}
    widgets = {swap.name(name): swap.value(name, value) for name, value in saved_widgets(node, definitions).items()}
    entries = definitions.inputs(swap.new, tuple(ends))
    node["type"] = swap.new
    node["inputs"] = [
        {"name": entry.name, "type": entry.kind, "link": ends.get(entry.name)}
        | ({"widget": {"name": entry.name}} if entry.is_widget else {})
        for entry in entries
    ]
    shown = [entry for entry in entries if entry.is_widget]
    node["widgets_values"] = [widgets.get(entry.name, entry.options.get("default")) for entry in shown]
    node.pop("widgets_values_named", None)
    for slot, entry in enumerate(node["inputs"]):
        if entry["link"] is not None:
            _end_in_slot(links, entry["link"], slot)


def _end_in_slot(links: list, link_id: int, slot: int) -> None:
    for link in links:
        if isinstance(link, list) and link[0] == link_id:
            link[4] = slot
        elif isinstance(link, dict) and link["id"] == link_id:
            link["target_slot"] = slot


def _promote_again(workflow: dict, subgraph: str, node_id: int, swap: Swap) -> None:
    """Releases before 1.40 of the frontend name a promoted widget by node and name instead of a link."""
    for instance in instances(workflow):
        if instance["type"] == subgraph:
            for entry in (instance.get("properties") or {}).get("proxyWidgets") or ():
                if entry[0] == str(node_id):
                    entry[1] = swap.name(entry[1])
