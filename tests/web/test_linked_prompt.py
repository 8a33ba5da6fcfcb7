"""A prompt that arrives over a link, out of a subgraph or into one: read where it can be told, never changed here."""

from __future__ import annotations

import pytest
from web_page import ComfyPage

FREE, NAMED, LACKING = "free", "named", "lacking"
TO_SUBGRAPH = """(ids) => {
  const { graph, canvas } = window.app;
  const made = graph.convertToSubgraph(new Set(ids.map((id) => graph.getNodeById(id))));
  const inner = made.subgraph.nodes.find((node) => node.comfyClass === "H3TEEncodeReferences");
  return [Number(made.node.id), Number(inner?.id)];
}"""
ENTER = "(id) => window.app.canvas.setGraph(window.app.graph.getNodeById(id).subgraph)"


@pytest.fixture
def node(page: ComfyPage) -> int:
    return page.add("H3TEEncodeReferences", (900, 80))


def text_node(page: ComfyPage, text: str) -> int:
    return page.add("PrimitiveStringMultiline", (60, 500), value=text)


def picture(page: ComfyPage) -> int:
    return page.add("LoadImage", (60, 80), image="rubber_duck.jpg")


def test_a_linked_text_is_checked_and_not_changed(page, node):
    page.link(picture(page), node, "ref_images.ref_image_0")
    source = text_node(page, "<Picture 1> and <Picture 3>")
    page.link(source, node, "prompt")
    page.wait_for_chips(node, [("<Picture 1>", NAMED), ("<Picture 3>", LACKING)])
    page.wait_for_note(node, "The prompt comes over a link: edit it there.")
    assert all(chip["fixed"] for chip in page.chips(node))
    page.chip(node, "<Picture 1>").click(force=True)  # it says that it is disabled
    assert page.prompt(node) == ""
    page.set(source, "value", "A duck.")
    page.wait_for_chips(node, [("<Picture 1>", FREE)])
    page.unlink(node, "prompt")
    page.type(node, "<Picture 1>")
    page.wait_for_chips(node, [("<Picture 1>", NAMED)])
    page.wait_for_note(node, "")


def test_a_text_that_is_computed_is_not_claimed(page, node):
    page.link(picture(page), node, "ref_images.ref_image_0")
    joined = page.add("StringConcatenate", (400, 500))
    page.link(text_node(page, "<Picture 3>"), joined, "string_a")
    page.link(joined, node, "prompt")
    page.wait_for_chips(node, [("<Picture 1>", FREE)])
    page.wait_for_note(node, "The prompt comes over a link; its labels are not checked here.")


def test_references_and_text_come_out_of_a_subgraph(page):
    node = page.add("H3TEEncodeKeyframes", (900, 80))  # ComfyUI loses links to grown sockets here
    source, loaded = text_node(page, "<Picture 1> <Picture 2>"), picture(page)
    page.link(loaded, node, "first_frame")
    page.link(source, node, "prompt")
    page.run(TO_SUBGRAPH, [source, loaded])
    page.wait_for_chips(node, [("<Picture 1>", NAMED), ("<Picture 2>", LACKING)])
    assert "rubber_duck.jpg" in page.chips(node)[0]["told"]


def test_the_node_inside_a_subgraph_sees_what_comes_from_outside(page, node):
    page.link(picture(page), node, "ref_images.ref_image_0")
    page.link(text_node(page, "<Picture 1> <Picture 2>"), node, "prompt")
    outer, inner = page.run(TO_SUBGRAPH, [node])
    page.run(ENTER, outer)
    page.settle()
    page.wait_for_chips(inner, [("<Picture 1>", NAMED), ("<Picture 2>", LACKING)])
    assert "rubber_duck.jpg" in page.chips(inner)[0]["told"]


def test_a_text_that_a_subgraph_shows_on_itself_is_read(page, node):
    page.type(node, "unused")
    page.link(picture(page), node, "ref_images.ref_image_0")
    source = text_node(page, "")
    page.link(source, node, "prompt")
    outer, inner = page.run(TO_SUBGRAPH, [node])
    page.unlink(outer, "prompt")
    page.set(outer, "prompt", "<Picture 2>")
    page.run(ENTER, outer)
    page.settle()
    page.wait_for_chips(inner, [("<Picture 1>", FREE), ("<Picture 2>", LACKING)])
