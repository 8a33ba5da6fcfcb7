"""A saved workflow, subgraphs resolved, as an API prompt that ends where the guider would read CONDITIONING.

Contract: `encode_part(workflow, definitions)` -> nodes in API format, ids "outer:inner" as the frontend makes them, no
more than the conditioning of each guider needs. `with_stand_ins` puts in VAEs without weights, and probes. Raises
ValueError for what it cannot resolve. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from template_graph import INPUTS, OUTPUTS, TOP, Link, Scope, linked, promoted, saved_widgets, scopes
from workflow_definitions import Definitions

ENCODERS = ("MiniMaxH3ReferenceToVideo", "MiniMaxH3ImageToVideo", "H3TEEncodeReferences", "H3TEEncodeKeyframes")
ENCODERS += ("CLIPTextEncode",)
FILES = {"LoadImage": "image", "LoadVideo": "file", "LoadAudio": "audio"}
_OFF = (2, 4)  # modes of a node: never, bypassed


@dataclass(frozen=True)
class Place:
    """A level of the workflow as one subgraph node on the level above uses it."""

    scope: Scope
    instance: Mapping[str, Any] | None = None
    outer: Place | None = None

    def key(self, node: Mapping[str, Any]) -> str:
        return f"{self.outer.key(self.instance)}:{node['id']}" if self.outer else str(node["id"])


@dataclass(frozen=True)
class EncodePart:
    """`prompt`: nodes in API format; `ends`: [node, slot] of each conditioning that a guider reads; `encoders`: how
    many encode nodes the workflow has, in use or not."""

    prompt: dict[str, dict]
    ends: list[list]
    encoders: int


def encode_part(workflow: Mapping[str, Any], definitions: Definitions) -> EncodePart:
    reader = _Reader(workflow, definitions)
    ends, encoders = [], 0
    for place, node in reader.walk(Place(reader.levels[TOP])):
        encoders += node["type"] in ENCODERS
        if node["mode"] not in _OFF and node["type"] in definitions:
            ends += [reader.value(place, link) for link in reader.conditioning_of(place, node)]
    return EncodePart(reader.prompt, [end for end in ends if isinstance(end, list)], encoders)


class _Reader:
    def __init__(self, workflow: Mapping[str, Any], definitions: Definitions):
        self.levels, self.definitions = scopes(workflow), definitions
        self.prompt: dict[str, dict] = {}

    def walk(self, place: Place) -> Iterator[tuple[Place, dict]]:
        """Every node that is not a subgraph, wherever it is used."""
        for node in place.scope.nodes.values():
            if node["type"] in self.levels:
                yield from self.walk(Place(self.levels[node["type"]], node, place))
            else:
                yield place, node

    def conditioning_of(self, place: Place, node: Mapping[str, Any]) -> list[Link]:
        """Links that bring CONDITIONING to a node that gives none: a guider or sampler."""
        kinds = [kind for _, kind in self.definitions.outputs(node["type"])]
        links = [place.scope.links[link] for link in linked(node).values()]
        return [link for link in links if link.kind == "CONDITIONING" and "CONDITIONING" not in kinds]

    def value(self, place: Place, link: Link) -> Any:
        """What arrives over a link: [node, slot], a widget's value, or None for a socket that nothing is linked to."""
        if link.origin == INPUTS:
            return self._from_outside(place, place.scope.inputs[link.origin_slot]["name"])
        node = place.scope.nodes[link.origin]
        if node["type"] in self.levels:
            inner = Place(self.levels[node["type"]], node, place)
            exit_link = inner.scope.origin_link(OUTPUTS, link.origin_slot)
            return None if exit_link is None else self.value(inner, exit_link)
        return [self._add(place, node), link.origin_slot]

    def _from_outside(self, place: Place, name: str) -> Any:
        link_id = linked(place.instance).get(name)
        if link_id is not None:
            return self.value(place.outer, place.outer.scope.links[link_id])
        return promoted(place.instance, place.scope).get(name)

    def _add(self, place: Place, node: dict) -> str:
        key = place.key(node)
        if key in self.prompt:
            return key
        if node["type"] not in self.definitions or node["mode"] in _OFF:
            raise ValueError(
                f"node {key} ({node['type']}): expected a node of this ComfyUI that is switched on, got another. "
                "Teach scripts/template_prompt.py to resolve it."
            )
        known = {entry.name for entry in self.definitions.inputs(node["type"], tuple(linked(node)))}
        inputs = {name: value for name, value in saved_widgets(node, self.definitions).items() if name in known}
        self.prompt[key] = {"class_type": node["type"], "inputs": inputs}
        for name, link_id in linked(node).items():
            value = self.value(place, place.scope.links[link_id])
            if value is not None:
                inputs[name] = value
        return key


def with_stand_ins(part: EncodePart, name: str) -> dict[str, dict]:
    """The prompt with VAEs that need no file, and a probe at each end that writes `<name>_<i>.safetensors`."""
    prompt = {key: dict(node) for key, node in part.prompt.items()}
    for node in prompt.values():
        if node["class_type"] == "VAELoader":
            kind = "audio" if "audio" in node["inputs"]["vae_name"] else "video"
            node.update(class_type="H3TEStandInVAE", inputs={"kind": kind})
    for i, end in enumerate(part.ends):
        inputs = {"conditioning": end, "name": f"{name}_{i}"}
        prompt[f"probe_{i}"] = {"class_type": "H3TEConditioningProbe", "inputs": inputs}
    return prompt


def files(prompt: Mapping[str, Mapping]) -> dict[str, str]:
    """name -> node type of the pictures, videos and sounds that the prompt loads."""
    loads = [(node["class_type"], node["inputs"]) for node in prompt.values() if node["class_type"] in FILES]
    return {inputs[FILES[kind]]: kind for kind, inputs in loads}
