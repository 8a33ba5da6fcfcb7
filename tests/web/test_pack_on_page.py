"""The pack as ComfyUI's page shows it: its category, its nodes, their help, and what its scripts reach."""

from __future__ import annotations

import layout
import pytest

HELP = layout.ROOT / "web" / "docs"
CATEGORY = "MiniMax H3/text encoder"
# what releases of ComfyUI call it
NODES = {file.stem for file in HELP.glob("*.md")}


@pytest.fixture
def page(open_page):
    opened = open_page()
    opened.clear()
    return opened


def test_every_node_is_under_the_pack_s_category(page):
    found = page.run(
        """() => Object.entries(window.LiteGraph.registered_node_types)
             .filter(([name]) => name.startsWith("H3TE")).map(([name, kind]) => [name, kind.category, kind.title])"""
    )
    assert {name for name, _, _ in found} >= NODES
    assert {category for _, category, _ in found} == {CATEGORY}
    assert [title for _, _, title in found if "(H3TE)" not in title] == []


def test_a_node_is_found_by_its_name_in_the_menu(page, pictures):
    page.page.mouse.dblclick(800, 600)
    page.settle()
    page.page.keyboard.type("Encode Prompt + Ref")  # the field has the focus
    page.page.get_by_text("Encode Prompt + Reference Image (H3TE)").first.wait_for()
    page.picture(pictures / "menu.png")


@pytest.mark.parametrize("name", sorted(NODES))
def test_help_of_every_node_is_served(server, name):
    text = server.request(f"/extensions/{server.pack.name}/docs/{name}.md").decode()
    assert text == (HELP / f"{name}.md").read_text(encoding="utf-8")


def test_the_help_panel_shows_our_page(page, pictures):
    node = page.add("H3TEEncodeReferences", (400, 80))
    page.fit(node, scale=0.8)  # clear of what lies at the page's edges
    page.open_help(node)
    heading = next(line for line in (HELP / "H3TEEncodeReferences.md").read_text("utf-8").splitlines() if line)
    page.page.get_by_text(heading.lstrip("# ")).first.wait_for()
    page.picture(pictures / "help.png")


def test_our_scripts_ask_for_nothing_and_nothing_leaves_this_machine(page):
    node = page.add("H3TEEncodeReferences", (400, 80))
    page.link(page.add("LoadImage", (60, 80), image="rubber_duck.jpg"), node, "ref_images.ref_image_0")
    page.type(node, "<Picture 1> <Picture 2>")
    page.wait_for_chips(node, [("<Picture 1>", "named"), ("<Picture 2>", "lacking")])
    page.chip(node, "<Picture 1>").click()
    page.settle()
    assert page.asked == []
    assert [url for url in page.blocked if "h3te" in url.lower()] == []
