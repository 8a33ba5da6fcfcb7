"""An encode queued from the page: progress while it runs, what the node says and shows afterwards, Stop."""

from __future__ import annotations

from itertools import pairwise

import given_checkpoint
import pytest
from web_page import ComfyPage

DEMO = given_checkpoint.DEMO_NAME + "/"
LONGEST = 180_000  # milliseconds
QUEUE = "() => window.app.queuePrompt(0, 1)"
HEAR = """() => {
  window.heard = { progress: [], text: [], done: false };
  const { api } = window.app;
  const keep = (list) => (event) => list.push(JSON.parse(JSON.stringify(event.detail ?? null)));
  api.addEventListener("progress", keep(window.heard.progress));
  api.addEventListener("progress_text", keep(window.heard.text));
  api.addEventListener("execution_success", () => { window.heard.done = true; });
  api.addEventListener("execution_error", keep(window.heard.error = []));
}"""


@pytest.fixture
def graph(page: ComfyPage) -> tuple[ComfyPage, int]:
    """Two pictures, an encode node, and the text that it gives on a node of ComfyUI's."""
    loader = page.add("H3TELoadTextEncoder", (60, 80), text_encoder=DEMO)
    node = page.add("H3TEEncodeReferences", (560, 80), width=864, height=480)
    shown = page.add("PreviewAny", (1100, 80))
    page.link(loader, node, "clip")
    for i, name in enumerate(("rubber_duck.jpg", "lighthouse.jpg")):
        page.link(page.add("LoadImage", (60, 300 + 360 * i), image=name), node, f"ref_images.ref_image_{i}")
        page.settle(300)
    page.link(node, shown, "source", slot=2)
    return page, node


def run(page: ComfyPage) -> dict:
    page.run(HEAR)
    page.run(QUEUE)
    page.page.wait_for_function("() => window.heard.done || window.heard.error.length", timeout=LONGEST)
    page.settle()
    heard = page.run("() => window.heard")
    assert heard["error"] == []
    return heard


def test_an_encode_is_queued_and_its_progress_and_text_are_seen(graph, pictures, mode):
    page, node = graph
    page.type(node, f"The duck of <Picture 1> at the lighthouse of <Picture 3>, {mode}.")
    heard = run(page)
    done = [(each["value"], each["max"]) for each in heard["progress"] if str(each.get("node")) == str(node)]
    assert len(done) > 1
    assert done[-1][0] == done[-1][1]
    assert all(before <= after for (before, _), (after, _) in pairwise(done))
    text = page.text_on(node)
    assert "<Picture 3>" in text
    assert "tokens in all" in text
    page.fit()
    page.picture(pictures / f"run_{mode}.png")


def test_stop_from_the_page_ends_the_run_and_the_next_one_works(graph, mode):
    page, node = graph
    page.type(node, f"Stopped, {mode}.")
    page.run(HEAR)
    page.run(
        "() => { window.heard.stopped = 0; window.app.api.addEventListener('execution_interrupted', "
        "() => { window.heard.stopped += 1; }); }"
    )
    page.run(QUEUE)
    page.page.wait_for_function("() => window.heard.progress.length > 0 || window.heard.done", timeout=LONGEST)
    page.run("() => window.app.api.interrupt(null)")
    page.page.wait_for_function("() => window.heard.stopped || window.heard.done", timeout=LONGEST)
    page.type(node, f"After Stop, {mode}.")
    heard = run(page)
    assert heard["done"]
