"""The bundled workflows, dropped on the canvas: known nodes, values as saved, nothing covered, the API graph."""

from __future__ import annotations

import json

import pytest
import workflow_browser
from web_page import ComfyPage

FILES = workflow_browser.bundled()
OURS = "H3TE"


@pytest.fixture(scope="module", params=[False, True], ids=["canvas", "nodes2"])
def pages(request, browser):
    """One page for all workflows of a mode."""
    page = browser.page({"width": 2400, "height": 1400}, Comfy__VueNodes__Enabled=request.param)
    page.mode = "nodes2" if request.param else "canvas"
    yield page
    page.close()


@pytest.fixture(scope="module", params=FILES, ids=[file.stem for file in FILES])
def dropped(request, pages, pictures) -> tuple[ComfyPage, dict, str]:
    pages.clear()
    pages.drop(request.param)
    pages.fit()
    pages.picture(pictures / f"workflow_{request.param.stem}_{pages.mode}.png")
    return pages, json.loads(request.param.read_text(encoding="utf-8")), request.param.stem


def test_dropped_workflow_is_as_saved(dropped, server):
    page, workflow, name = dropped
    nodes = page.nodes()
    assert sorted(node["id"] for node in nodes) == sorted(node["id"] for node in workflow["nodes"])
    lacking = {node["type"] for node in nodes if not node["known"]}
    assert {kind for kind in lacking if kind.startswith(OURS)} == set()
    changed = workflow_browser.changed(workflow, page.saved())
    assert [node for node in changed if node.startswith(OURS)] == []
    assert page.errors == []
    if "MiniMaxH3ReferenceToVideo" in server.object_info():  # with nodes that it lacks, the page sends another graph
        assert (lacking, changed) == (set(), [])
        assert workflow_browser.sent_alike(name, page.sent()) in ("API graph equal", "no API copy")


def test_dropped_workflow_covers_no_node(dropped):
    page, workflow, _ = dropped
    if any(not node["known"] for node in page.nodes()):
        pytest.skip("nodes that this ComfyUI lacks have sizes of their own")
    assert workflow_browser.overlapping(page.boxes()) == []
    assert workflow_browser.outside(page.boxes(), workflow["groups"]) == []


def test_prompts_of_dropped_workflows_name_what_is_connected(dropped):
    """The chips agree with the workflow's own prompts: nothing that they name is lacking."""
    page, _, _ = dropped
    for node in page.nodes():
        if node["type"] in ("H3TEEncodeReferences", "H3TEEncodeKeyframes"):
            page.settle(400)
            assert [chip for chip in page.chips(node["id"]) if chip["state"] == "lacking"] == []
