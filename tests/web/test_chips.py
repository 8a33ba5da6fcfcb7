"""Chips under a prompt: what is connected, what the prompt names, and what a click or a key puts into it."""

from __future__ import annotations

import pytest
from web_page import ComfyPage

NAMED, FREE, LACKING, UNSURE = "named", "free", "lacking", "unsure"


@pytest.fixture
def node(page: ComfyPage) -> int:
    return page.add("H3TEEncodeReferences", (560, 80))


def picture(page: ComfyPage, y: int = 80, image: str = "rubber_duck.jpg") -> int:
    return page.add("LoadImage", (60, y), image=image)


def connect(page: ComfyPage, node: int, count: int = 1) -> list[int]:
    found = []
    for i in range(count):
        found.append(picture(page, 80 + 340 * i))
        page.link(found[-1], node, f"ref_images.ref_image_{i}")
        page.settle(300)  # a grown socket appears after the one before it is linked
    return found


def test_nothing_connected_is_said_in_words(page, node):
    page.wait_for_note(node, "No reference connected.")
    assert page.chips(node) == []


def test_chips_follow_typing(page, node):
    connect(page, node)
    page.wait_for_chips(node, [("<Picture 1>", FREE)])
    page.type(node, "A duck as in <Picture 1>, beside <Picture 4> and <Video 1>.")
    page.wait_for_chips(node, [("<Picture 1>", NAMED), ("<Picture 4>", LACKING), ("<Video 1>", LACKING)])
    page.type(node, "A duck.")
    page.wait_for_chips(node, [("<Picture 1>", FREE)])


def test_chips_follow_links(page, node):
    first, second = connect(page, node, 2)
    page.type(node, "<Picture 2>")
    page.wait_for_chips(node, [("<Picture 1>", FREE), ("<Picture 2>", NAMED)])
    page.remove(second)
    page.wait_for_chips(node, [("<Picture 1>", FREE), ("<Picture 2>", LACKING)])
    page.remove(first)
    page.wait_for_chips(node, [("<Picture 2>", LACKING)])


def test_a_click_inserts_at_the_caret(page, node):
    connect(page, node)
    page.type(node, "Before after")
    field = page.field(node)
    field.evaluate("(field) => field.setSelectionRange(7, 7)")
    page.chip(node, "<Picture 1>").click()
    assert page.prompt(node) == "Before <Picture 1>after"
    assert field.evaluate("(field) => [field === document.activeElement, field.selectionStart]") == [True, 18]
    page.page.keyboard.type(" and")
    assert page.prompt(node) == "Before <Picture 1> andafter"
    page.wait_for_chips(node, [("<Picture 1>", NAMED)])


def test_a_click_replaces_what_is_selected(page, node):
    connect(page, node)
    page.type(node, "The <Picture 7> floats")
    page.wait_for_chips(node, [("<Picture 1>", FREE), ("<Picture 7>", LACKING)])
    page.chip(node, "<Picture 7>").click()  # shows where it stands, by selecting it
    page.chip(node, "<Picture 1>").click()
    assert page.prompt(node) == "The <Picture 1> floats"


def test_what_was_inserted_is_sent_and_can_be_undone(page, node):
    connect(page, node)
    page.type(node, "A duck ")
    page.chip(node, "<Picture 1>").click()
    assert page.sent()[str(node)]["inputs"]["prompt"] == "A duck <Picture 1>"
    page.page.keyboard.press("Control+z")
    assert page.prompt(node) == "A duck "


def test_chips_are_reached_and_used_by_keys_alone(page, node):
    connect(page, node, 2)
    page.type(node, "Duck ")
    page.wait_for_chips(node, [("<Picture 1>", FREE), ("<Picture 2>", FREE)])
    page.field(node).focus()
    focused = "() => document.activeElement.dataset?.label ?? document.activeElement.tagName"
    page.page.keyboard.press("Tab")
    assert page.run(focused) == "<Picture 1>"
    seen = page.run("() => getComputedStyle(document.activeElement).outlineStyle")
    assert seen == "solid"
    page.page.keyboard.press("ArrowRight")
    assert page.run(focused) == "<Picture 2>"
    assert [chip["stop"] for chip in page.chips(node)] == [-1, 0]
    page.page.keyboard.press("ArrowRight")
    assert page.run(focused) == "<Picture 1>"
    page.page.keyboard.press("End")
    page.page.keyboard.press("Enter")
    assert page.prompt(node) == "Duck <Picture 2>"
    assert page.run(focused) == "TEXTAREA"


def test_focus_stays_on_its_chip_when_the_row_is_drawn_again(page, node):
    first, _ = connect(page, node, 2)
    page.wait_for_chips(node, [("<Picture 1>", FREE), ("<Picture 2>", FREE)])
    page.chip(node, "<Picture 1>").focus()
    page.set(first, "image", "lighthouse.jpg")
    page.page.wait_for_function("() => document.activeElement.title?.includes('lighthouse.jpg')")
    assert page.run("() => document.activeElement.dataset.label") == "<Picture 1>"


def test_names_that_people_type_are_never_markup(page, node):
    image = page.add("H3TEReferenceImage", (60, 80))
    page.run("(id) => { window.app.graph.getNodeById(id).title = '<img src=x onerror=window.hacked=1>'; }", image)
    page.link(picture(page, 420), image, "image")
    page.link(image, node, "references")
    page.type(node, "<img src=x onerror=window.hacked=1> <Picture 1>")
    page.wait_for_chips(node, [("<Picture 1>", NAMED)])
    page.settle(300)
    assert page.run("() => [window.hacked ?? null, document.querySelectorAll('.h3te-chips img').length]") == [None, 0]


def test_nothing_is_left_when_the_node_goes(page, node):
    other = page.add("H3TEEncodeKeyframes", (1100, 80))
    page.wait_for_chips(other, [])
    assert page.kept() == {"clocks": 1, "observers": 2, "listeners": 0}
    page.remove(node)
    page.settle(500)
    assert page.kept() == {"clocks": 1, "observers": 1, "listeners": 0}
    page.clear()
    page.settle(500)
    assert page.kept() == {"clocks": 0, "observers": 0, "listeners": 0}
    assert page.run("() => document.querySelectorAll('.h3te-chips').length") == 0
