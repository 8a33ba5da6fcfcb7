"""What ComfyUI says about the nodes of the bundled workflows, kept as facts in tests/workflow_facts/definitions.json.

Contract: `Definitions` answers for a node type: its sockets, its widgets and its outputs, in the order in which the
frontend lays them out. An entry is ComfyUI's own `/object_info` entry without texts and without lists of files, so the
same class reads a live server's answer. Growing inputs are told by how many of them are linked. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import layout

FACTS = layout.ROOT / "tests" / "workflow_facts"
FILE = FACTS / "definitions.json"
OURS = "H3TE"  # every id of this pack begins so
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3")
FILES = ("unet_name", "lora_name", "vae_name", "image", "file", "audio", "text_encoder")  # combos that list a folder
_KEPT = ("display_name", "input", "output", "output_name", "output_is_list", "output_node")
_TEXTS = ("tooltip", "display_name", "placeholder")
NOTE = {"display_name": "Markdown Note", "input": {"required": {"text": ["STRING", {}]}}, "output": []}


@dataclass(frozen=True)
class Input:
    """One socket or widget as a workflow names it. `kind`: its type; growing inputs have flat names and a label."""

    name: str
    kind: str
    required: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def is_widget(self) -> bool:
        return self.kind in WIDGETS

    @property
    def choices(self) -> list | None:
        """What a combo offers; None for other inputs and for combos that list a folder."""
        found = self.options.get("options")
        if found is None or self.name in FILES:
            return None
        return [option["key"] if isinstance(option, dict) else option for option in found]


class Definitions:
    """Node definitions by type: `nodes` in the form of /object_info."""

    def __init__(self, nodes: Mapping[str, Any], comfyui: str = "", date: str = ""):
        self.nodes, self.comfyui, self.date = {"MarkdownNote": NOTE, **nodes}, comfyui, date

    def __contains__(self, kind: str) -> bool:
        return kind in self.nodes

    def title(self, kind: str) -> str:
        return self.nodes[kind].get("display_name") or kind

    def outputs(self, kind: str) -> list[tuple[str, str]]:
        """Name and type of each output."""
        entry = self.nodes[kind]
        return list(zip(entry.get("output_name") or entry["output"], entry["output"], strict=True))

    def inputs(self, kind: str, linked: tuple[str, ...] | None = ()) -> list[Input]:
        """Every input, required ones first. linked: names in use, which decide how far growing inputs have grown; None
        for as far as they can."""
        found = []
        for section, required in (("required", True), ("optional", False)):
            for name, declared in (self.nodes[kind]["input"].get(section) or {}).items():
                found += _expanded(name, declared, required, linked)
        return found

    def companions(self, kind: str) -> dict[str, list[tuple[str, Any]]]:
        """What the frontend adds after a widget: {widget: [(name, value), ...]}. Saved, but never sent."""
        return {entry.name: added for entry in self.inputs(kind) if (added := _companions(entry.options))}


def load() -> Definitions:
    """The facts that the project carries."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    return Definitions(kept["nodes"], kept["comfyui"], kept["date"])


def save(object_info: Mapping[str, Any], kinds: Iterable[str], comfyui: str, date: str) -> None:
    """Writes the facts about `kinds` from a live answer."""
    nodes = {kind: trimmed(object_info[kind]) for kind in sorted(kinds)}
    text = json.dumps({"comfyui": comfyui, "date": date, "nodes": nodes}, indent=1, ensure_ascii=False)
    FACTS.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text + "\n", encoding="utf-8", newline="\n")


def trimmed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An /object_info entry without texts, hidden inputs and the names of somebody's files."""
    kept = {name: entry[name] for name in _KEPT if entry.get(name) is not None}
    sections = {name: entry["input"].get(name) or {} for name in ("required", "optional")}
    kept["input"] = {
        section: {name: _without_texts(_declared(name, value)) for name, value in inputs.items()}
        for section, inputs in sections.items()
        if inputs
    }
    return kept


def _declared(name: str, value: list) -> list:
    """`[type, options]` whichever way a node declares it; the older form has a combo's list in place of its type."""
    kind, options = value[0], dict(value[1]) if len(value) > 1 else {}
    if isinstance(kind, list):
        kind, options = "COMBO", {**options, "options": kind}
    if kind == "COMBO" and name in FILES:
        options["options"] = []
    return [kind, options]


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_texts(inner) for name, inner in value.items() if name not in _TEXTS}
    return [_without_texts(inner) for inner in value] if isinstance(value, list) else value


def _expanded(name: str, declared: list, required: bool, linked: tuple[str, ...] | None) -> list[Input]:
    kind, options = _declared(name, declared)
    if kind == "COMFY_AUTOGROW_V3":
        return _grown(name, options["template"], linked)
    entry = Input(name, kind, required, options, name.partition(".")[2])
    if kind != "COMFY_DYNAMICCOMBO_V3":
        return [entry]
    chosen = options["options"][0]["inputs"]  # the workflows leave such combos at their first choice
    inner = [_expanded(f"{name}.{n}", v, True, linked) for n, v in (chosen.get("required") or {}).items()]
    return [entry, *(each for group in inner for each in group)]


def _grown(name: str, template: Mapping[str, Any], linked: tuple[str, ...] | None) -> list[Input]:
    """The linked ones and one more, as the frontend shows them; all of them for None."""
    ((kind, options),) = (declared for group in template["input"].values() for declared in group.values())
    least, prefix = template.get("min", 0), template.get("prefix", "")
    names = template.get("names") or [f"{prefix}{i}" for i in range(template["max"])]
    used = [i for i, each in enumerate(names) if linked is None or f"{name}.{each}" in linked]
    shown = names[: max([least, *(i + 1 for i in used)]) + 1]
    return [Input(f"{name}.{each}", kind, i < least, options, each) for i, each in enumerate(shown)]


def _companions(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    control = options.get("control_after_generate")
    if control:
        return [(control if isinstance(control, str) else "control_after_generate", "fixed")]
    if options.get("image_upload") or options.get("video_upload"):
        return [("upload", "image")]
    return [("audioUI", None), ("upload", "")] if options.get("audio_upload") else []
