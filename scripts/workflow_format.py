"""A graph written down once, as the frontend saves it and as it sends it to the server.

Contract: `Graph.saved()` is the UI format (0.4, sockets that nothing is linked to included, widgets by position and by
name); `Graph.sent()` the API format, equal to what the frontend makes of the former. A `Node`'s inputs are values or
links `(node id, output name)`. Standard library only.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflow_definitions import OURS, Definitions, Input

GROUP_COLOUR = "#3f789e"
YOURS = {"color": "#322", "bgcolor": "#533"}  # the nodes that people change
_NAMESPACE = uuid.UUID("6f1c1f5e-7a58-4c8e-9d0b-5a2d9e6b7c31")


@dataclass(frozen=True)
class Link:
    """An output of another node, by its name."""

    node: int
    output: str


@dataclass(frozen=True)
class Node:
    """`at` and `size` in pixels, without the title bar of 30 above; directory: of the model file that it loads."""

    id: int
    kind: str
    at: tuple[int, int]
    size: tuple[int, int]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    directory: str = ""
    yours: bool = False
    collapsed: bool = False


@dataclass(frozen=True)
class Group:
    title: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Graph:
    name: str
    nodes: Sequence[Node]
    groups: Sequence[Group]
    definitions: Definitions

    def sent(self) -> dict[str, Any]:
        """The API format."""
        return {str(node.id): self._sent(node) for node in self.nodes if node.kind != "MarkdownNote"}

    def saved(self) -> dict[str, Any]:
        """The UI format."""
        links = self._links()
        nodes = [self._saved(node, links, place) for node, place in zip(self.nodes, self._order(), strict=True)]
        return {
            "id": str(uuid.uuid5(_NAMESPACE, self.name)),
            "revision": 0,
            "last_node_id": max(node.id for node in self.nodes),
            "last_link_id": len(links),
            "nodes": nodes,
            "links": links,
            "groups": [
                {"id": i, "title": group.title, "bounding": list(group.box), "color": GROUP_COLOUR, "flags": {}}
                for i, group in enumerate(self.groups, 1)
            ],
            "config": {},
            "extra": {"ds": {"scale": 0.5, "offset": [640, 140]}},
            "version": 0.4,
        }

    def _inputs(self, node: Node) -> list[Input]:
        linked = tuple(name for name, value in node.inputs.items() if isinstance(value, Link))
        known = self.definitions.inputs(node.kind, linked)
        unknown = set(node.inputs) - {entry.name for entry in known}
        if unknown:
            raise ValueError(f"{self.name}: node {node.id} ({node.kind}) has no input {sorted(unknown)}.")
        return known

    def _sent(self, node: Node) -> dict[str, Any]:
        inputs = {}
        for entry in self._inputs(node):
            value = node.inputs.get(entry.name)
            if isinstance(value, Link):
                inputs[entry.name] = [str(value.node), self._slot(value)]
            elif entry.is_widget:
                inputs[entry.name] = self._value(node, entry)
        title = node.title or self.definitions.title(node.kind)
        return {"inputs": inputs, "class_type": node.kind, "_meta": {"title": title}}

    def _value(self, node: Node, entry: Input) -> Any:
        """A widget's own value: the one given, else its default."""
        value = node.inputs.get(entry.name)
        if value is not None and not isinstance(value, Link):
            return value
        fallback = {"INT": 0, "FLOAT": 0, "STRING": "", "BOOLEAN": False}.get(entry.kind)
        found = entry.options.get("default", (entry.choices or [None])[0] if fallback is None else fallback)
        return int(found) if entry.kind == "FLOAT" and found == int(found) else found

    def _slot(self, link: Link) -> int:
        (source,) = [node for node in self.nodes if node.id == link.node]
        return [name for name, _ in self.definitions.outputs(source.kind)].index(link.output)

    def _type(self, link: Link) -> str:
        """The type that travels; a switch gives what it is given."""
        (source,) = [node for node in self.nodes if node.id == link.node]
        kind = dict(self.definitions.outputs(source.kind))[link.output]
        given = [value for value in source.inputs.values() if isinstance(value, Link)]
        return self._type(given[0]) if kind == "COMFY_MATCHTYPE_V3" else kind

    def _links(self) -> list[list]:
        found = []
        for node in self.nodes:
            for place, (_, value) in enumerate(self._sockets(node)):
                if isinstance(value, Link):
                    row = [value.node, self._slot(value), node.id, place, self._type(value)]
                    found.append([len(found) + 1, *row])
        return found

    def _sockets(self, node: Node) -> list[tuple[Input, Any]]:
        """What is saved as inputs: all sockets, then the widgets that are linked."""
        inputs = [(entry, node.inputs.get(entry.name)) for entry in self._inputs(node)]
        linked = [(entry, value) for entry, value in inputs if entry.is_widget and isinstance(value, Link)]
        return [(entry, value) for entry, value in inputs if not entry.is_widget] + linked

    def _order(self) -> list[int]:
        """The place of each node in the order of execution, as the frontend counts it."""
        waits = {node.id: [v.node for v in node.inputs.values() if isinstance(v, Link)] for node in self.nodes}
        queue = [node for node, sources in waits.items() if not sources]
        for done in queue:  # grows meanwhile
            targets = [link[3] for output in self._outgoing(done) for link in output]
            for target in targets:
                waits[target].remove(done)
                if not waits[target]:
                    queue.append(target)
        return [queue.index(node.id) for node in self.nodes]

    def _outgoing(self, node: int) -> list[list[list]]:
        """Its links, output by output."""
        mine = [link for link in self._links() if link[1] == node]
        return [[link for link in mine if link[2] == slot] for slot in sorted({link[2] for link in mine})]

    def _saved(self, node: Node, links: list[list], order: int) -> dict[str, Any]:
        inputs = [self._saved_input(node, place, *each, links) for place, each in enumerate(self._sockets(node))]
        widgets = self._widgets(node)
        saved = {"id": node.id, "type": node.kind, "pos": list(node.at), "size": list(node.size)}
        saved |= {"flags": {"collapsed": True} if node.collapsed else {}, "order": order, "mode": 0, "inputs": inputs}
        saved["outputs"] = [self._saved_output(node, i, *each, links) for i, each in enumerate(self._outputs(node))]
        saved |= {"title": node.title} if node.title else {}
        saved["properties"] = self._properties(node)
        saved["widgets_values"] = [value for _, value in widgets]
        saved["widgets_values_named"] = dict(pair for pair in widgets if pair[1] is not None)
        return saved | (YOURS if node.yours else {})

    def _outputs(self, node: Node) -> list[tuple[str, str]]:
        given = [value for value in node.inputs.values() if isinstance(value, Link)]
        found = self.definitions.outputs(node.kind)
        return [(name, self._type(given[0]) if kind == "COMFY_MATCHTYPE_V3" else kind) for name, kind in found]

    def _saved_input(self, node: Node, place: int, entry: Input, value: Any, links: list[list]) -> dict[str, Any]:
        mine = [link for link in links if link[3:5] == [node.id, place]]
        kind = mine[0][5] if mine and entry.kind == "COMFY_MATCHTYPE_V3" else entry.kind
        saved = {"label": entry.label} if entry.label else {}
        saved |= {"name": entry.name} | ({} if entry.required or entry.is_widget else {"shape": 7})
        saved |= {"type": kind} | ({"widget": {"name": entry.name}} if entry.is_widget else {})
        return saved | {"link": mine[0][0] if mine else None}

    def _saved_output(self, node: Node, slot: int, name: str, kind: str, links: list[list]) -> dict[str, Any]:
        lists = self.definitions.nodes[node.kind].get("output_is_list") or []
        shape = {"shape": 6} if slot < len(lists) and lists[slot] else {}
        return {"name": name} | shape | {"type": kind, "links": [x[0] for x in links if x[1:3] == [node.id, slot]]}

    def _widgets(self, node: Node) -> list[tuple[str, Any]]:
        added, found = self.definitions.companions(node.kind), []
        for entry in self._inputs(node):
            if entry.is_widget:
                found += [(entry.name, self._value(node, entry)), *added.get(entry.name, ())]
        return found

    def _properties(self, node: Node) -> dict[str, Any]:
        if node.kind == "MarkdownNote":
            return {}
        ours = node.kind.startswith(OURS)
        found = (
            {"cnr_id": "minimax-h3-text-encoder"} if ours else {"cnr_id": "comfy-core", "ver": self.definitions.comfyui}
        )
        found["Node name for S&R"] = node.kind
        if node.directory:
            name = next(value for value in node.inputs.values() if isinstance(value, str))
            url = f"https://huggingface.co/Comfy-Org/MiniMax-H3/resolve/main/{node.directory}/{name}"
            found["models"] = [{"name": name, "url": url, "directory": node.directory}]
        return found
