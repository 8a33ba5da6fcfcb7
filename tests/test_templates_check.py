"""The template check itself, on a small graph with a subgraph: what it accepts and which faults it must find."""

from __future__ import annotations

import copy

import pytest
from h3te_tests.templates_graph import object_info, workflow

from template_check import compare, takes  # isort: skip
from template_swap import PASSES, swapped  # isort: skip
from workflow_definitions import Definitions, Input  # isort: skip

LOADER_ONLY, BOTH = PASSES.values()


def checked(swaps=BOTH, info: dict | None = None, graph: dict | None = None, spoil=lambda after: None):
    definitions = Definitions(info or object_info())
    before = graph or workflow()
    after = swapped(before, swaps, definitions)
    spoil(after)
    return compare(before, after, swaps, definitions)


@pytest.mark.parametrize(("swaps", "nodes", "links", "widgets"), [(LOADER_ONLY, 1, 2, 2), (BOTH, 2, 8, 5)])
def test_our_nodes_keep_every_link_and_widget(swaps, nodes, links, widgets):
    verdict = checked(swaps)
    assert verdict.faults == []
    assert verdict.nodes == nodes
    assert (verdict.links, verdict.widgets) == ([True] * links, [True] * widgets)
    assert verdict.interface == [True] * 8  # five links across the border, three promoted widgets


def test_second_pass_changes_nothing_but_the_type():
    before, after = workflow(), swapped(workflow(), BOTH, Definitions(object_info()))
    old, new = (each["definitions"]["subgraphs"][0]["nodes"][2] for each in (before, after))
    assert new == {**old, "type": "H3TEEncodeReferences"}


def test_loader_of_another_type_is_left_alone():
    graph = workflow()
    graph["definitions"]["subgraphs"][0]["nodes"][0]["widgets_values"][1] = "sd3"
    assert swapped(graph, LOADER_ONLY, Definitions(object_info())) == graph


def renamed(info: dict, kind: str, section: str, old: str, new: str) -> dict:
    inputs = info[kind]["input"][section]
    info[kind]["input"][section] = {new if name == old else name: value for name, value in inputs.items()}
    return info


@pytest.mark.parametrize(
    ("section", "old", "fault"),
    [
        ("required", "vae", "the link of input vae is lost"),
        ("required", "prompt", "the link of input prompt is lost"),
        ("optional", "ref_images", "the link of input ref_images.ref_image_0 is lost"),
        ("required", "size", "widget size = 'max' arrives as size = None"),
    ],
)
def test_renamed_input_of_ours_is_found(section, old, fault):
    info = renamed(copy.deepcopy(object_info()), "H3TEEncodeReferences", section, old, "renamed")
    assert any(fault in found for found in checked(info=info).faults)


def test_renamed_input_also_harms_the_subgraphs_interface():
    info = renamed(copy.deepcopy(object_info()), "H3TEEncodeReferences", "required", "prompt", "text")
    assert "Encode: link 2 across the subgraph's border is lost" in checked(info=info).faults


def test_renamed_loader_input_is_found():
    info = renamed(copy.deepcopy(object_info()), "H3TELoadTextEncoder", "required", "text_encoder", "file")
    faults = checked(LOADER_ONLY, info).faults
    assert any("the link of input clip_name is lost" in fault for fault in faults)
    assert any("widget clip_name = 'other' arrives as text_encoder = None" in fault for fault in faults)


def test_exchanged_widgets_are_found():
    info = copy.deepcopy(object_info())
    inputs = info["H3TEEncodeReferences"]["input"]["required"]
    info["H3TEEncodeReferences"]["input"]["required"] = {"width": inputs["width"], **inputs}
    assert any("widget width = 64 arrives as width = 'inner prompt'" in fault for fault in checked(info=info).faults)


def test_value_that_our_widget_refuses_is_found():
    info = copy.deepcopy(object_info())
    info["H3TEEncodeReferences"]["input"]["required"]["size"] = ["COMBO", {"options": ["match"]}]
    assert any("widget size = 'max'" in fault for fault in checked(info=info).faults)


@pytest.mark.parametrize("outputs", [["LATENT", "CONDITIONING"], []])
def test_output_of_another_type_is_found(outputs):
    info = copy.deepcopy(object_info())
    info["H3TEEncodeReferences"] |= {"output": outputs, "output_name": outputs}
    faults = checked(info=info).faults
    assert any("a link of output 0 is lost" in fault for fault in faults)


def test_moved_promoted_widget_and_lost_border_link_are_found():
    def spoil(after: dict) -> None:
        after["nodes"][0]["widgets_values"].insert(0, "shifted")
        del after["definitions"]["subgraphs"][0]["links"][3]

    faults = checked(spoil=spoil).faults
    assert "Encode: promoted widget clip_name is lost or has moved" in faults
    assert "Encode: link 4 across the subgraph's border is lost" in faults


def test_names_of_newer_frontends_must_agree_with_positions():
    graph = workflow()
    graph["definitions"]["subgraphs"][0]["nodes"][2]["widgets_values_named"] = {"prompt": "another"}
    assert any("prompt is read as 'inner prompt', saved as 'another'" in fault for fault in checked(graph=graph).faults)


@pytest.mark.parametrize(("name", "lost"), [("size", False), ("gone", True)])
def test_proxy_widgets_of_older_frontends_must_name_a_widget(name, lost):
    graph = workflow()
    graph["nodes"][0]["properties"] = {"proxyWidgets": [["3", name], ["1", "clip_name"]]}
    faults = checked(graph=graph).faults
    assert (f"Encode: promoted widget {name} of node 3 is lost" in faults) == lost
    assert not any("text_encoder" in fault for fault in faults)


@pytest.mark.parametrize(
    ("kind", "options", "value", "accepted"),
    [
        ("INT", {"min": 32, "max": 64}, 64, True), ("INT", {"min": 32, "max": 64}, 65, False), ("INT", {}, "a", False),
        ("STRING", {}, "", True), ("STRING", {}, 1, False), ("BOOLEAN", {}, True, True), ("BOOLEAN", {}, "yes", False),
        ("COMBO", {"options": ["a"]}, "a", True), ("COMBO", {"options": ["a"]}, "b", False),
    ],
)  # fmt: skip
def test_widget_takes_its_own_kind_of_value(kind, options, value, accepted):
    assert takes(Input("x", kind, True, options), value) == accepted
