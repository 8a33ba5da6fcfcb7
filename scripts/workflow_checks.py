"""A saved workflow held against node definitions: links, sockets, widgets, models, layout.

Contract: each function takes a workflow in UI format (and `Definitions`) and yields problems as text, none when all is
well. The same functions serve the carried facts and a live host. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from workflow_definitions import OURS, Definitions, Input

TITLE = 30  # pixels that a node's title bar takes above its position
REPOSITORY = "https://huggingface.co/Comfy-Org/MiniMax-H3/resolve/main"
LOADERS = ("UNETLoader", "LoraLoaderModelOnly", "VAELoader", "H3TELoadTextEncoder")
_NUMBERS = {"INT": int, "FLOAT": (int, float)}


def is_ours(node: dict) -> bool:
    return node["type"].startswith(OURS)


def link_problems(workflow: dict) -> Iterator[str]:
    """The table of links and the slots of the nodes tell the same, and types meet."""
    nodes = {node["id"]: node for node in workflow["nodes"]}
    for link, source, slot, target, place, kind in workflow["links"]:
        output, entry = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        where = f"link {link}, {nodes[source]['type']} to {nodes[target]['type']}.{entry['name']}"
        if link not in output["links"] or entry["link"] != link:
            yield f"{where}: the table says it, the nodes do not"
        if not (fits(output["type"], kind) and fits(kind, entry["type"])):
            yield f"{where}: {output['type']} does not fit {entry['type']}"
    inputs = [entry["link"] for node in workflow["nodes"] for entry in node["inputs"] if entry["link"] is not None]
    outputs = [link for node in workflow["nodes"] for output in node["outputs"] for link in output["links"]]
    if not sorted(inputs) == sorted(outputs) == sorted(link[0] for link in workflow["links"]):
        yield "the table of links and the slots name different links"


def fits(kind: str, accepted: str) -> bool:
    return "*" in (kind, accepted) or bool(set(kind.split(",")) & set(accepted.split(",")))


def node_problems(workflow: dict, known: Definitions, chosen: Callable[[dict], bool], exact: bool = True):
    """Sockets, outputs and widgets of the chosen nodes as the definitions have them. exact: every widget, in order;
    otherwise an input that the definitions lack is another release's and is passed over."""
    for node in workflow["nodes"]:
        if not chosen(node):
            continue
        if node["type"] not in known:
            yield f"{node['type']} ({node['id']}): not known"
            continue
        linked = tuple(entry["name"] for entry in node["inputs"] if entry["link"] is not None)
        inputs = {entry.name: entry for entry in known.inputs(node["type"], linked)}
        found = [*_socket_problems(node, inputs, exact), *_output_problems(node, known, exact)]
        found += _count_problems(node, known, inputs) if exact else ()
        for problem in [*found, *_value_problems(node, inputs)]:
            yield f"{node['type']} ({node['id']}): {problem}"


def _socket_problems(node: dict, inputs: dict[str, Input], exact: bool) -> Iterator[str]:
    for saved in node["inputs"]:
        entry = inputs.get(saved["name"])
        if entry is None and exact:
            yield f"has no input {saved['name']}"
        elif entry is not None and entry.kind != "COMFY_MATCHTYPE_V3" and not fits(saved["type"], entry.kind):
            yield f"{saved['name']} takes {entry.kind}, saved as {saved['type']}"
    linked = {saved["name"] for saved in node["inputs"] if saved["link"] is not None}
    for entry in inputs.values():
        if entry.required and not entry.is_widget and entry.name not in linked:
            yield f"{entry.name} is required, and nothing is linked"


def _output_problems(node: dict, known: Definitions, exact: bool) -> Iterator[str]:
    outputs = known.outputs(node["type"])
    if exact and len(outputs) != len(node["outputs"]):
        yield f"has {len(outputs)} outputs, saved are {len(node['outputs'])}"
    for (name, kind), saved in zip(outputs, node["outputs"], strict=False):
        if name != saved["name"] or (kind != "COMFY_MATCHTYPE_V3" and not fits(kind, saved["type"])):
            yield f"output {name} ({kind}) is saved as {saved['name']} ({saved['type']})"


def _count_problems(node: dict, known: Definitions, inputs: dict[str, Input]) -> Iterator[str]:
    added = known.companions(node["type"])
    wanted = [[name, *(n for n, _ in added.get(name, ()))] for name, entry in inputs.items() if entry.is_widget]
    names = [name for group in wanted for name in group]
    if len(names) != len(node["widgets_values"]):
        yield f"has the widgets {names}, saved are {len(node['widgets_values'])} values"
        return
    named = dict(zip(names, node["widgets_values"], strict=True))
    if {name: value for name, value in named.items() if value is not None} != node["widgets_values_named"]:
        yield "values by position and by name differ"


def _value_problems(node: dict, inputs: dict[str, Input]) -> Iterator[str]:
    for name, value in node["widgets_values_named"].items():
        entry = inputs.get(name)
        if entry is not None and entry.is_widget and not _is_valid(value, entry):
            yield f"{name} cannot be {value!r}"


def _is_valid(value: Any, entry: Input) -> bool:
    if entry.kind in _NUMBERS:
        least, most = entry.options.get("min", value), entry.options.get("max", value)
        return isinstance(value, _NUMBERS[entry.kind]) and not isinstance(value, bool) and least <= value <= most
    if entry.kind == "BOOLEAN":
        return isinstance(value, bool)
    return isinstance(value, str) and (entry.choices is None or value in entry.choices)


def definition_problems(kept: Definitions, live: Definitions) -> Iterator[str]:
    """Our nodes as the carried facts have them and as a live host has them, growing inputs grown alike."""
    for kind in sorted(name for name in kept.nodes if name.startswith(OURS)):
        if kind not in live:
            yield f"{kind}: not known"
            continue
        ours, theirs = ({e.name: _facts(e) for e in each.inputs(kind, None)} for each in (kept, live))
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                yield f"{kind}.{name}: kept as {ours.get(name)}, live {theirs.get(name)}"
        if kept.outputs(kind) != live.outputs(kind):
            yield f"{kind}: outputs {kept.outputs(kind)} are live {live.outputs(kind)}"


def _facts(entry: Input) -> tuple:
    shown = ("default", "min", "max", "step", "multiline")
    return (entry.kind, entry.required, entry.choices, *(entry.options.get(name) for name in shown))


def models(workflow: dict) -> int:
    """How many model files it takes: without a text encoder where its conditioning comes from a file."""
    return 4 if any(node["type"] == "H3TELoadConditioning" for node in workflow["nodes"]) else 5


def model_problems(workflow: dict) -> Iterator[str]:
    """Every model file that a loader names can be offered for download."""
    loaders = [node for node in workflow["nodes"] if node["type"] in LOADERS]
    wanted = models(workflow)
    if len(loaders) != wanted:
        yield f"expected {wanted} nodes that load a model, got {len(loaders)}"
    for node in loaders:
        (model,) = node["properties"].get("models") or [{"name": None, "directory": None, "url": None}]
        url = f"{REPOSITORY}/{model['directory']}/{node['widgets_values'][0]}"
        if model["name"] != node["widgets_values"][0] or model["url"] != url:
            yield f"{node['type']} ({node['id']}): its download is {model}"


def layout_problems(workflow: dict) -> Iterator[str]:
    """Nodes do not overlap, and each lies inside one group or (the note) outside all."""
    boxes = [(node, _box(node)) for node in workflow["nodes"]]
    for i, (first, one) in enumerate(boxes):
        for second, other in boxes[i + 1 :]:
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                yield f"nodes {first['id']} and {second['id']} overlap"
    groups = [(x, y, x + w, y + h) for x, y, w, h in (group["bounding"] for group in workflow["groups"])]
    for node, (x, y, right, bottom) in boxes:
        around = [g for g in groups if g[0] <= x and g[1] <= y and right <= g[2] and bottom <= g[3]]
        if len(around) != (node["type"] != "MarkdownNote"):
            yield f"node {node['id']} ({node['type']}) lies in {len(around)} groups"


def _box(node: dict) -> tuple[float, float, float, float]:
    (x, y), (width, height) = node["pos"], node["size"]
    return x, y - TITLE, x + width, y + (0 if node["flags"].get("collapsed") else height)
