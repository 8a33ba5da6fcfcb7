"""An encode queued from the page: progress while it runs, what the node says and shows afterwards, Stop."""

from __future__ import annotations

from itertools import pairwise

import given_checkpoint
import pytest
from web_page import ComfyPage

DEMO = given_checkpoint.DEMO_NAME + "/"
LONGEST = 180_000  # milliseconds
DRAWS_TEXT = (1, 40)  # Nodes 2.0 of 1.32 makes the widget of a node's text and draws it as one grey bar
SEEN = "Picture 1 = ref_image_0: 1024x768 shrunk to 736x544 (match); no latent"


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


def test_an_encode_is_queued_and_its_progress_and_text_are_seen(graph, pictures, mode):
    page, node = graph
    page.type(node, f"The duck of <Picture 1> at the lighthouse of <Picture 3>, {mode}.")
    heard = page.queue(LONGEST)
    done = [(each["value"], each["max"]) for each in heard["progress"] if str(each.get("node")) == str(node)]
    assert len(done) > 1
    assert done[-1][0] == done[-1][1]
    assert all(before <= after for (before, _), (after, _) in pairwise(done))
    text = page.text_on(node)
    assert "<Picture 3>" in text
    assert "tokens in all" in text
    page.fit()
    if mode == "canvas" or page.frontend() >= DRAWS_TEXT:
        drawn = [line.strip() for line in page.run("() => document.body.innerText").splitlines()]
        assert SEEN in drawn
    page.picture(pictures / f"run_{mode}.png")


def test_stop_from_the_page_ends_the_run_and_the_next_one_works(graph, mode):
    page, node = graph
    page.set(node, "ref_image_size", "official")  # long enough to be stopped
    page.type(node, f"Stopped, {mode}.")
    page.start_run()
    page.wait_for_run(LONGEST, "heard.progress.length || heard.ended")
    page.run("() => window.app.api.interrupt(null)")
    assert page.wait_for_run(LONGEST)["stopped"] == 1
    page.set(node, "ref_image_size", "match")
    page.type(node, f"After Stop, {mode}.")
    heard = page.queue(LONGEST)
    assert (heard["ended"], heard["stopped"]) == (1, 0)
