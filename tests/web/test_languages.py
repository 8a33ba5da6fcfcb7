"""The pack in Chinese: titles, the menu's category, names and tooltips of sockets, and the help page."""

from __future__ import annotations

import layout
from node_locales import read

# Frontends of late 2025 load a language only when it is chosen, and that load put away what packs had brought for it
# (Comfy-Org/ComfyUI_frontend, pull request 7214, December 2025): there nodes keep their English names.
KEEPS_WORDS_OF_PACKS = (1, 36)
KIND = "H3TEEncodeReferences"
DRAWN = """(kind) => {
  const node = window.LiteGraph.createNode(kind);
  const called = (slot) => [slot.name, slot.label || slot.localized_name];
  return { title: node.title, category: node.constructor.category, inputs: node.inputs.map(called),
    widgets: node.widgets.map((widget) => [widget.name, widget.label]), outputs: node.outputs.map(called) };
}"""


def test_a_node_is_named_in_chinese(open_page):
    page = open_page(Comfy__Locale="zh")
    language = "zh" if page.frontend() >= KEEPS_WORDS_OF_PACKS else "en"
    names, drawn = read(language, "nodeDefs.json")[KIND], page.run(DRAWN, KIND)
    assert drawn["title"] == names["display_name"]
    assert drawn["category"] == {"zh": "MiniMax H3/文本编码器", "en": "MiniMax H3/text encoder"}[language]
    for kind in ("inputs", "widgets"):
        called = dict(drawn[kind])
        plain = [name for name in called if name in names["inputs"]]
        assert {name: called[name] for name in plain} == {name: names["inputs"][name]["name"] for name in plain}
        assert "prompt" in plain
    told = [output.get("name") for output in names["outputs"].values()]
    assert [label for _, label in drawn["outputs"]] == [told[0], "Latent", *told[2:]]


def test_help_is_chinese_and_shows_its_picture(open_page, pictures):
    page = open_page(Comfy__Locale="zh")
    assert _help(page).startswith("编码提示词与参考图像（H3TE）")
    shown = page.page.locator(".node-help-content img").first
    assert shown.evaluate("(image) => image.naturalWidth") > 100
    assert "**" not in page.page.locator(".node-help-content").first.inner_text()
    page.picture(pictures / "help_zh.png")


def test_help_in_a_language_that_is_not_there_is_english(open_page):
    english = (layout.ROOT / "web" / "docs" / f"{KIND}.md").read_text("utf-8")
    assert _help(open_page(Comfy__Locale="zh-TW")).startswith(english.splitlines()[0].lstrip("# "))


def _help(page) -> str:
    page.clear()
    page.open_help(page.add(KIND, (500, 320)))  # below what ComfyUI lays over the canvas' upper edge
    page.page.locator(".node-help-content h1").first.wait_for()
    return page.page.locator(".node-help-content").first.inner_text().strip()
