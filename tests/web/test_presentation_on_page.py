"""What the encoder would read, seen on the page before anything is encoded: Show Presentation, and `preview_only`."""

from __future__ import annotations

import given_checkpoint
from web_page import ComfyPage

DEMO = given_checkpoint.DEMO_NAME + "/"
LONGEST = 60_000  # milliseconds
# on the canvas a node holds its pictures itself, Nodes 2.0 draws them as elements
PICTURE_ON = """(id) => {
  const drawn = [...document.querySelectorAll(`[data-node-id="${id}"] img`)];
  const pictures = [...drawn, ...(window.app.graph.getNodeById(id).imgs ?? [])];
  return pictures.some((picture) => picture.complete && picture.naturalWidth > 200);
}"""


def connect(page: ComfyPage, node: int) -> None:
    for i, name in enumerate(("rubber_duck.jpg", "lighthouse.jpg")):
        page.link(page.add("LoadImage", (60, 420 + 360 * i), image=name), node, f"ref_images.ref_image_{i}")
        page.settle(300)


def test_show_presentation_draws_what_would_be_read_without_a_checkpoint(page, pictures, mode):
    node = page.add("H3TEShowPresentation", (560, 80))
    connect(page, node)
    page.type(node, f"The duck of <Picture 1> and <Picture 3>, {mode}.")
    page.wait_for_chips(node, [("<Picture 1>", "named"), ("<Picture 2>", "free"), ("<Picture 3>", "lacking")])
    page.queue(LONGEST)
    page.page.wait_for_function(PICTURE_ON, arg=node, timeout=LONGEST)
    assert "<Picture 3>" in page.text_on(node)
    page.fit()
    page.picture(pictures / f"presentation_{mode}.png")


def test_references_and_keyframes_together_are_said_before_a_run(page):
    node = page.add("H3TEShowPresentation", (560, 80))
    connect(page, node)
    page.link(page.node_of("LoadImage"), node, "first_frame")
    page.wait_for_note(node, "References and keyframes cannot be used together.")


def test_preview_only_draws_on_the_encode_node_and_runs_nothing_after_it(page, pictures, mode):
    loader = page.add("H3TELoadTextEncoder", (60, 80), text_encoder=DEMO)
    node = page.add("H3TEEncodeReferences", (560, 80), preview_only=True)
    shown, after = page.add("PreviewAny", (1100, 80)), page.add("PreviewAny", (1100, 500))
    page.link(loader, node, "clip")
    connect(page, node)
    page.type(node, f"The duck of <Picture 1>, {mode}.")
    page.link(node, shown, "source", slot=2)
    page.link(node, after, "source", slot=0)
    page.queue(LONGEST)
    page.page.wait_for_function(PICTURE_ON, arg=node, timeout=LONGEST)
    outputs = page.run("() => Object.keys(window.app.nodeOutputs)")
    assert str(shown) in outputs
    assert str(after) not in outputs
    page.fit()
    page.picture(pictures / f"preview_only_{mode}.png")
