"""How the chips look, in both themes and both modes: readable, whole, inside their node. The pictures are kept."""

from __future__ import annotations

import pytest
from web_page import ComfyPage

THEMES = ("dark", "light")
LEAST_CONTRAST = 4.5  # WCAG AA for small text
# Text against what is behind it, in every chip and note; alpha composited up the page
CONTRAST = """(id) => {
  const channels = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((value, i) => (i < 3 ? value : value / 255));
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
  const behind = (element) => {
    if (!element) return channels(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const own = channels(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const node = window.app.graph.getNodeById(id);
  const canvasNode = channels(node.bgcolor ?? window.LiteGraph.NODE_DEFAULT_BGCOLOR).slice(0, 3);
  const row = document.querySelector(`[data-h3te-node="${id}"]`);
  return [...row.querySelectorAll("button, .h3te-note")].map((element) => {
    const { color, opacity } = getComputedStyle(element);
    const drawn = Boolean(element.closest("[data-node-id]"));
    const own = channels(getComputedStyle(element).backgroundColor);
    const under = drawn ? behind(element) : over(own, canvasNode);
    const text = channels(color);
    const seen = light(over([...text.slice(0, 3), text[3] * Number(opacity)], under));
    const back = light(under);
    return [element.textContent, (Math.max(seen, back) + 0.05) / (Math.min(seen, back) + 0.05)];
  });
}"""
# Chips that are cut, or lie outside the row, or cover each other
MISPLACED = """(id) => {
  const row = document.querySelector(`[data-h3te-node="${id}"]`), frame = row.getBoundingClientRect();
  const parts = [...row.querySelectorAll("button, .h3te-note")];
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const wrong = [];
  parts.forEach((part, i) => {
    const box = boxes[i];
    if (part.scrollWidth > part.clientWidth + 1) wrong.push(["cut", part.textContent]);
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
      wrong.push(["outside", part.textContent]);
    boxes.slice(i + 1).forEach((other, j) => {
      if (box.left < other.right - 1 && other.left < box.right - 1 && box.top < other.bottom - 1
          && other.top < box.bottom - 1) wrong.push(["covers", part.textContent, parts[i + 1 + j].textContent]);
    });
  });
  return wrong;
}"""


@pytest.fixture(params=THEMES)
def theme(request) -> str:
    return request.param


@pytest.fixture
def scene(open_page, mode, theme) -> tuple[ComfyPage, list[int]]:
    """Every state of a chip, a linked prompt, and nine pictures in a narrow node."""
    page = open_page(Comfy__VueNodes__Enabled=mode == "nodes2", Comfy__ColorPalette=theme)
    page.clear()
    full = page.add("H3TEEncodeReferences", (520, 80))
    source = page.add("LoadImage", (60, 80), image="rubber_duck.jpg")
    for i in range(9):
        page.link(source, full, f"ref_images.ref_image_{i}")
        page.settle(150)
    page.link(page.add("EmptyImage", (60, 460)), full, "ref_images.ref_image_8")
    page.type(full, "<Picture 1> meets <Picture 2>; <Picture 12> and <Audio 1> are missing.")
    linked = page.add("H3TEEncodeKeyframes", (1040, 80))
    page.link(source, linked, "first_frame")
    text = page.add("PrimitiveStringMultiline", (60, 700), value="From <Picture 1> to <Picture 2>.")
    page.link(text, linked, "prompt")
    empty = page.add("H3TEEncodeKeyframes", (1040, 640))
    page.settle()
    return page, [full, linked, empty]


def test_chips_are_readable_and_whole(scene, pictures, mode, theme):
    page, nodes = scene
    page.fit()
    page.picture(pictures / f"chips_{mode}_{theme}.png")
    page.fit(*nodes[:1], scale=1.0)
    page.picture(pictures / f"chips_{mode}_{theme}_near.png")
    for node in nodes:
        assert page.run(MISPLACED, node) == []
        faint = [(text, round(ratio, 2)) for text, ratio in page.run(CONTRAST, node) if ratio < LEAST_CONTRAST]
        assert faint == []
    assert [chip["state"] for chip in page.chips(nodes[0])].count("lacking") == 1  # <Audio 1>
    assert "unsure" in [chip["state"] for chip in page.chips(nodes[0])]


def test_chips_speak_chinese_on_a_chinese_page(open_page, pictures):
    page = open_page(Comfy__Locale="zh")
    page.clear()
    node = page.add("H3TEEncodeReferences", (400, 80))
    page.wait_for_note(node, "尚未连接参考。")
    page.fit(node, scale=1.2)
    page.picture(pictures / "chips_zh.png")
