"""Saved workflows are those of a page without our scripts, and come back with every value; undo and copies too."""

from __future__ import annotations

import json
from pathlib import Path

import layout
import pytest
from web_page import ComfyPage

SAVED = layout.ROOT / "tests" / "saved_workflows" / "h3te_ref2va_images.json"
COPY = """(id) => {
  const { canvas, graph } = window.app;
  canvas.copyToClipboard([graph.getNodeById(id)]);
  canvas.pasteFromClipboard({ position: [1200, 80] });
  return Number(graph.nodes.at(-1).id);
}"""
EMPTY = {"last_node_id": 0, "last_link_id": 0, "nodes": [], "links": [], "groups": [], "version": 0.4}
VALUES = {"width": 864, "height": 480, "length": 243, "ref_image_size": "official", "alpha_colour": "#102030"}


@pytest.fixture
def node(page: ComfyPage) -> int:
    return page.add("H3TEEncodeReferences", (560, 80), **VALUES)


def values(page: ComfyPage, node: int) -> list:
    return next(each for each in page.saved()["nodes"] if each["id"] == node)["widgets_values"]


def named(page: ComfyPage, node: int) -> dict:
    return dict(next(each for each in page.nodes() if each["id"] == node)["widgets"])


def test_saved_values_hold_no_place_for_the_chips(page, node):
    page.type(node, "A duck")
    assert values(page, node)[:6] == ["A duck", 864, 480, 243, "official", "#102030"]
    assert None not in values(page, node)


def test_reload_brings_every_value_back(page, node):
    page.type(node, "A duck of <Picture 1>")
    before, saved = named(page, node), page.saved()
    page.open()
    page.load(saved)
    assert named(page, node) == before
    assert values(page, node) == next(each for each in saved["nodes"] if each["id"] == node)["widgets_values"]
    page.wait_for_chips(node, [("<Picture 1>", "lacking")])


def test_an_earlier_release_s_workflow_keeps_its_values(page):
    workflow = json.loads(Path(SAVED).read_text(encoding="utf-8"))
    entry = next(each for each in workflow["nodes"] if each["type"] == "H3TEEncodeReferences")
    page.load(workflow)
    given = named(page, entry["id"])
    assert {name: given[name] for name in entry["widgets_values_named"]} == entry["widgets_values_named"]
    assert values(page, entry["id"])[: len(entry["widgets_values"])] == entry["widgets_values"]


def test_a_workflow_saved_here_opens_where_our_scripts_are_missing(open_page, page, node):
    page.type(node, "A duck")
    before, saved = named(page, node), page.saved()
    bare = open_page(without_ours=True)
    bare.load(saved)
    assert bare.run("() => document.querySelectorAll('.h3te-chips').length") == 0
    assert named(bare, node) == before


def test_a_copy_has_chips_of_its_own(page, node):
    page.type(node, "<Picture 1>")
    copy = page.run(COPY, node)
    page.wait_for_chips(copy, [("<Picture 1>", "lacking")])
    assert named(page, copy) == named(page, node)
    page.type(copy, "no label")
    page.wait_for_chips(copy, [])
    page.wait_for_chips(node, [("<Picture 1>", "lacking")])


def test_undo_takes_an_inserted_label_back(page):
    page.load(EMPTY)  # what is undone is of a workflow
    node = page.add("H3TEEncodeReferences", (560, 80))
    page.link(page.add("LoadImage", (60, 80), image="rubber_duck.jpg"), node, "ref_images.ref_image_0")
    page.type(node, "A duck ")
    page.page.keyboard.press("Escape")
    page.run("() => document.activeElement?.blur()")
    tracker = "window.app.extensionManager.workflow.activeWorkflow.changeTracker"
    page.run(f"() => {{ const t = {tracker}; (t.captureCanvasState ?? t.checkState).call(t); }}")
    page.chip(node, "<Picture 1>").click()
    assert page.prompt(node) == "A duck <Picture 1>"
    page.run(f"() => {tracker}.undo()")
    page.settle()
    assert page.prompt(node) == "A duck "
    page.wait_for_chips(node, [("<Picture 1>", "free")])
