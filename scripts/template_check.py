"""Compares a workflow before and after our nodes took the place of ComfyUI's: what is lost, what has moved.

Contract: `compare(before, after, swaps, definitions)` counts and names faults. A link is kept when the new node has an
input of the (renamed) name that takes the link's type, and its outputs have the old types in their slots. A widget is
kept when the value that the new node reads at its place is the old one of that name, and the new node takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from template_graph import (
    INPUTS,
    OUTPUTS,
    Link,
    Scope,
    instances,
    linked,
    promoted,
    promoted_names,
    saved_widgets,
    scopes,
    target_input,
)
from template_swap import Swap
from workflow_definitions import Definitions, Input


@dataclass
class Verdict:
    """Counts are (kept, all)."""

    nodes: int = 0
    links: list[bool] = field(default_factory=list)
    widgets: list[bool] = field(default_factory=list)
    interface: list[bool] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def note(self, kept: list[bool], holds: bool, fault: str) -> None:
        kept.append(holds)
        if not holds:
            self.faults.append(fault)


def compare(before: Mapping, after: Mapping, swaps: Sequence[Swap], definitions: Definitions) -> Verdict:
    verdict = Verdict()
    old_levels, new_levels = scopes(before), scopes(after)
    for key, old in old_levels.items():
        new = new_levels[key]
        for node in old.nodes.values():
            swap = next((swap for swap in swaps if swap.applies(node, definitions)), None)
            if swap is not None:
                verdict.nodes += 1
                _Pair(old, new, node, new.nodes[node["id"]], swap, definitions, verdict).check()
        _check_interface(old, new, swaps, definitions, verdict)
    for old_instance, new_instance in zip(instances(before), instances(after), strict=True):
        _check_instance(old_instance, new_instance, old_levels, new_levels, definitions, verdict)
    return verdict


def fits(given: str, taken: str) -> bool:
    """Whether an input of type `taken` accepts a link of type `given`; both may name several."""
    one, other = set(str(given).split(",")), set(str(taken).split(","))
    return bool(one & other) or "*" in one | other


@dataclass
class _Pair:
    old_scope: Scope
    new_scope: Scope
    old: dict
    new: dict
    swap: Swap
    definitions: Definitions
    verdict: Verdict

    def check(self) -> None:
        self._check_inputs()
        self._check_outputs()
        self._check_widgets()

    @property
    def where(self) -> str:
        return f"{self.old_scope.name}, node {self.old['id']}, {self.swap.old} -> {self.swap.new}"

    def _known(self) -> dict[str, Input]:
        return {entry.name: entry for entry in self.definitions.inputs(self.swap.new, tuple(linked(self.new)))}

    def _check_inputs(self) -> None:
        known, now = self._known(), linked(self.new)
        for name, link_id in linked(self.old).items():
            new_name = self.swap.name(name)
            link, entry = self.new_scope.links.get(link_id), known.get(new_name)
            holds = bool(link and entry) and now.get(new_name) == link_id and fits(link.kind, entry.kind)
            holds = holds and target_input(self.new_scope, link)["name"] == new_name
            self.verdict.note(self.verdict.links, holds, f"{self.where}: the link of input {name} is lost")

    def _check_outputs(self) -> None:
        types = [kind for _, kind in self.definitions.outputs(self.swap.new)]
        for slot, output in enumerate(self.old.get("outputs") or ()):
            for _ in output.get("links") or ():
                holds = slot < len(types) and fits(types[slot], output["type"])
                self.verdict.note(self.verdict.links, holds, f"{self.where}: a link of output {slot} is lost")

    def _check_widgets(self) -> None:
        known = self._known()
        now = saved_widgets(self.new, self.definitions)
        old = saved_widgets(self.old, self.definitions)
        self._check_reading(old)
        for name, value in old.items():
            if name in self.swap.dropped:
                continue
            new_name, wanted = self.swap.name(name), self.swap.value(name, value)
            holds = new_name in now and now[new_name] == wanted and takes(known.get(new_name), wanted)
            got = repr(now.get(new_name))
            fault = f"{self.where}: widget {name} = {wanted!r} arrives as {new_name} = {got}"
            self.verdict.note(self.verdict.widgets, holds, fault)

    def _check_reading(self, by_position: Mapping[str, Any]) -> None:
        """Newer frontends save names as well: they tell whether positions are read here as they are there."""
        for name, value in (self.old.get("widgets_values_named") or {}).items():
            if name in by_position and by_position[name] != value:
                self.verdict.faults.append(f"{self.where}: {name} is read as {by_position[name]!r}, saved as {value!r}")


def takes(entry: Input | None, value: Any) -> bool:
    """Whether a widget accepts a value; a combo that lists files accepts any name here, the server looks for it."""
    if entry is None:
        return False
    if entry.kind in ("INT", "FLOAT"):
        low, high = entry.options.get("min", value), entry.options.get("max", value)
        return isinstance(value, (int, float)) and low <= value <= high
    if entry.kind == "COMBO":
        return isinstance(value, str) if entry.choices is None else value in entry.choices
    return isinstance(value, {"STRING": str, "BOOLEAN": bool}.get(entry.kind, object))


def _check_interface(old: Scope, new: Scope, swaps: Sequence[Swap], definitions: Definitions, verdict: Verdict) -> None:
    """Sockets of a subgraph: same names, types and links, and each link ends where it did or in its counterpart."""
    if _sockets(old) != _sockets(new):
        verdict.faults.append(f"{old.name}: the subgraph's own sockets changed")
    ours = {swap.new for swap in swaps}
    for link in old.links.values():
        if link.origin == INPUTS or link.target == OUTPUTS:
            kept = new.links.get(link.id)
            holds = kept is not None and _same_ends(link, kept) and _arrives(new, kept, ours, definitions)
            verdict.note(verdict.interface, holds, f"{old.name}: link {link.id} across the subgraph's border is lost")


def _sockets(scope: Scope) -> list[tuple]:
    return [(each["name"], each["type"], each.get("linkIds")) for each in (*scope.inputs, *scope.outputs)]


def _same_ends(old: Link, new: Link) -> bool:
    """The slot that it ends in may be another: the frontend finds inputs by name."""
    return (old.origin, old.origin_slot, old.target, old.kind) == (new.origin, new.origin_slot, new.target, new.kind)


def _arrives(scope: Scope, link: Link, ours: set[str], definitions: Definitions) -> bool:
    if link.target == OUTPUTS:
        node = scope.nodes.get(link.origin)
        if node is None or node["type"] not in ours:
            return node is not None
        types = [kind for _, kind in definitions.outputs(node["type"])]
        return link.origin_slot < len(types) and fits(types[link.origin_slot], link.kind)
    entry, node = target_input(scope, link), scope.nodes.get(link.target)
    if node is None or entry.get("link") != link.id:
        return False
    if node["type"] not in ours:
        return True
    known = {each.name: each for each in definitions.inputs(node["type"], tuple(linked(node)))}
    found = known.get(entry["name"])
    return found is not None and fits(link.kind, found.kind) and (entry.get("widget") is None or found.is_widget)


def _check_instance(
    old: dict, new: dict, old_levels: Mapping, new_levels: Mapping, definitions: Definitions, verdict: Verdict
) -> None:
    """A subgraph node's own widgets: the same names with the same values, each still leading to a widget."""
    before, after = (promoted(node, levels[node["type"]]) for node, levels in ((old, old_levels), (new, new_levels)))
    scope = new_levels[new["type"]]
    for name, value in before.items():
        holds = name in after and after[name] == value
        verdict.note(verdict.interface, holds, f"{scope.name}: promoted widget {name} is lost or has moved")
    if "proxyWidgets" not in (old.get("properties") or {}) and len(old.get("widgets_values") or ()) != len(before):
        verdict.faults.append(f"{scope.name}: {len(before)} promoted widgets, {len(old['widgets_values'])} values")
    for node_id, name in (new.get("properties") or {}).get("proxyWidgets") or ():
        holds = name in promoted_names(scope) if node_id == "-1" else _has_widget(scope, node_id, name, definitions)
        verdict.note(verdict.interface, holds, f"{scope.name}: promoted widget {name} of node {node_id} is lost")


def _has_widget(scope: Scope, node_id: str, name: str, definitions: Definitions) -> bool:
    node = scope.nodes.get(int(node_id))
    return node is not None and node["type"] in definitions and name in saved_widgets(node, definitions)
