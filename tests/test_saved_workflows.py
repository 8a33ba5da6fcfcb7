"""Workflows that an earlier release saved still load: every widget value at its input, every link at its socket.

Contract: tests/saved_workflows holds the files as 0.1.0 saved them, UI format and API format; never edit them, add
those of later releases beside. ComfyUI's frontend gives a node's `widgets_values` to its widgets by position, in the
order of the node's info (required inputs, then optional ones); sockets and API prompts go by name.
"""

from __future__ import annotations

import asyncio
import json
from itertools import zip_longest
from pathlib import Path

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, place, text_encoders  # noqa: F401 (fixtures)

FOLDER = Path(__file__).resolve().parent / "saved_workflows"
NAMES = ("h3te_ref2va_images", "h3te_fl2va_first_last")
ENCODE = {"h3te_ref2va_images": "H3TEEncodeReferences", "h3te_fl2va_first_last": "H3TEEncodeKeyframes"}
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


@pytest.fixture
def ours(text_encoders, demo_file) -> dict:  # noqa: F811
    """The nodes of this pack by id, with the text encoder of the saved workflows in its folder."""
    import h3te

    place(demo_file, text_encoders / "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors")
    extension = asyncio.run(h3te.comfy_entrypoint())
    return {node.GET_SCHEMA().node_id: node for node in asyncio.run(extension.get_node_list())}


@pytest.fixture(params=NAMES)
def saved(request) -> dict:
    return json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))


@pytest.fixture(params=NAMES)
def prompt(request) -> dict:
    return json.loads((FOLDER / f"{request.param}.api.json").read_text(encoding="utf-8"))


def changed(node, change):
    """The node with a schema that `change(list of inputs)` has altered."""

    def define_schema(cls):
        schema = node.define_schema()
        change(schema.inputs)
        return schema

    return type(node.__name__, (node,), {"define_schema": classmethod(define_schema)})


def place_of(inputs: list, name: str) -> int:
    return [socket.id for socket in inputs].index(name)


# what the frontend does


def widgets_of(node) -> list[str]:
    """Names of a node's widgets in the frontend's order. Neither seeds nor uploads, which have a second widget."""
    info = node.GET_NODE_INFO_V1()
    found = []
    for group in ("required", "optional"):
        for name in info["input_order"].get(group, ()):
            kind, *options = info["input"][group][name]
            if isinstance(kind, list) or kind in WIDGETS:
                assert not any("control_after_generate" in o or "image_upload" in o for o in options), name
                found.append(name)
    return found


def shifted(entry: dict, node) -> dict[str, tuple]:
    """{widget: (value it gets, value it was saved with)} where the two differ."""
    given = dict(zip_longest(widgets_of(node), entry["widgets_values"], fillvalue="(none)"))
    named = entry["widgets_values_named"]
    return {name: (given.get(name), value) for name, value in named.items() if given.get(name, ...) != value}


def our_entries(saved: dict, ours: dict) -> list[tuple[dict, type]]:
    return [(entry, ours[entry["type"]]) for entry in saved["nodes"] if entry["type"] in ours]


def test_every_widget_value_is_at_its_input(saved, ours):
    entries = our_entries(saved, ours)
    assert [len(entry["widgets_values"]) for entry, _ in entries] == [2, 5]
    assert [shifted(entry, node) for entry, node in entries] == [{}, {}]


def test_every_socket_is_still_there_and_takes_its_type(saved, ours):
    for entry, node in our_entries(saved, ours):
        kinds = sockets_of(node)
        for socket in entry["inputs"]:
            group = socket["name"].split(".")[0]
            assert set(socket["type"].split(",")) <= kinds[group], socket["name"]


def sockets_of(node) -> dict[str, set[str]]:
    """{input, or growing group: the types that it takes}"""
    found: dict[str, set[str]] = {}
    for socket in node.GET_SCHEMA().inputs:
        kind = socket.template.input if hasattr(socket, "template") else socket
        found.setdefault(socket.id.split(".")[0], set()).update(str(kind.get_io_type()).split(","))
    return found


def test_every_output_is_at_its_slot(saved, ours):
    for entry, node in our_entries(saved, ours):
        outputs = [(o.display_name or o.io_type, o.io_type) for o in node.GET_SCHEMA().outputs]
        kept = [(output["name"], output["type"]) for output in entry["outputs"]]
        assert outputs[: len(kept)] == kept


# the same checks on schemas that would break saved workflows


def insert(inputs: list, at: str) -> None:
    from comfy_api.latest import io

    inputs.insert(place_of(inputs, at), io.Int.Input("inserted", default=0))


def swap(inputs: list) -> None:
    one, other = place_of(inputs, "width"), place_of(inputs, "height")
    inputs[one], inputs[other] = inputs[other], inputs[one]


BREAKING = {
    "inserted before the prompt": lambda inputs: insert(inputs, "prompt"),
    "inserted in the middle": lambda inputs: insert(inputs, "height"),
    "inserted before the last one": lambda inputs: insert(inputs, "length"),
    "swapped": swap,
    "removed": lambda inputs: inputs.pop(place_of(inputs, "length")),
    "made optional": lambda inputs: setattr(inputs[place_of(inputs, "width")], "optional", True),
    "renamed": lambda inputs: setattr(inputs[place_of(inputs, "prompt")], "id", "text"),
}


@pytest.mark.parametrize("change", BREAKING)
def test_changed_order_of_inputs_is_noticed(saved, ours, change):
    entry, node = our_entries(saved, ours)[1]
    assert shifted(entry, changed(node, BREAKING[change]))


def test_appended_inputs_and_sockets_in_the_middle_shift_nothing(saved, ours):
    from comfy_api.latest import io

    def grow(inputs: list) -> None:
        inputs.insert(place_of(inputs, "width"), io.Image.Input("socket", optional=True))
        inputs.append(io.Int.Input("appended", default=0, optional=True))

    entry, node = our_entries(saved, ours)[1]
    assert shifted(entry, changed(node, grow)) == {}


# API format, by the host's own validation


@pytest.fixture
def validate(comfy, ours, prompt, saved_kinds, monkeypatch):  # noqa: F811
    """The errors of the host for each node of ours in a saved prompt; nodes of others are stand-ins of their types."""
    import execution

    monkeypatch.setattr(comfy.nodes, "NODE_CLASS_MAPPINGS", dict(ours))

    def run(nodes=ours) -> list:
        known, asked = dict(nodes), {}
        for name, entry in prompt.items():
            if entry["class_type"] in nodes:
                asked[name] = entry
            else:
                known[f"saved {name}"] = stand_in(saved_kinds.get(name, ()))
                asked[name] = {"inputs": {}, "class_type": f"saved {name}"}
        monkeypatch.setattr(comfy.nodes, "NODE_CLASS_MAPPINGS", known)
        checked = [n for n, entry in asked.items() if entry["class_type"] in nodes]
        answers = [asyncio.run(execution.validate_inputs("saved", asked, name, {})) for name in checked]
        assert len(answers) == 2
        return [error for _, errors, _ in answers for error in errors]

    return run


@pytest.fixture
def saved_kinds(prompt) -> dict[str, tuple[str, ...]]:
    """{node id: its output types}, from the UI file of the same name."""
    encode = {entry["class_type"] for entry in prompt.values()}
    name = next(name for name in NAMES if ENCODE[name] in encode)
    workflow = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {str(e["id"]): tuple(output["type"] for output in e["outputs"]) for e in workflow["nodes"]}


def stand_in(kinds: tuple[str, ...]) -> type:
    takes = classmethod(lambda cls: {"required": {}})
    return type("StandIn", (), {"INPUT_TYPES": takes, "RETURN_TYPES": kinds, "FUNCTION": "run"})


def test_saved_prompts_are_valid(validate):
    assert validate() == []


def test_saved_prompts_are_found_invalid_by_another_schema(validate, ours, prompt):
    """An input that was not there and has to be given; a socket and a widget of another type."""
    from comfy_api.latest import io

    encode = next(entry["class_type"] for entry in prompt.values() if entry["class_type"] in ENCODE.values())

    def errors(change) -> list[str]:
        return [error["type"] for error in validate({**ours, encode: changed(ours[encode], change)})]

    assert errors(lambda inputs: inputs.append(io.Image.Input("appended"))) == ["required_input_missing"]
    assert errors(lambda inputs: inputs.append(io.Int.Input("appended", optional=True))) == []
    to_mask = lambda inputs: inputs.__setitem__(0, io.Mask.Input("clip"))  # noqa: E731
    assert errors(to_mask) == ["return_type_mismatch"]
    mode = "ref_image_size" if encode == "H3TEEncodeReferences" else "fit"
    to_number = lambda inputs: inputs.__setitem__(place_of(inputs, mode), io.Int.Input(mode))  # noqa: E731
    assert errors(to_number) == ["invalid_input_type"]


def test_saved_prompts_name_no_input_that_is_gone(prompt, ours):
    for entry in prompt.values():
        if entry["class_type"] in ours:
            assert {name.split(".")[0] for name in entry["inputs"]} <= set(sockets_of(ours[entry["class_type"]]))
