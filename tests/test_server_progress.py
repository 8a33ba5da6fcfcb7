"""Progress in a running ComfyUI: the page is told what is done, on nodes of ComfyUI and on ours, while they run."""

from __future__ import annotations

import demo_requests
import pytest
from demo_requests import REFERENCES, TEXT
from h3te_tests.host_server import (
    DEMO_VALUE,
    demo_folder,  # noqa: F401
    host_server,  # noqa: F401
)
from h3te_tests.page import as_plain_text


@pytest.fixture(scope="module")
def server(host_server):  # noqa: F811
    demo_requests.upload_pictures(host_server, [REFERENCES])
    return host_server


def run(server, request) -> tuple[list[str], list[tuple[int, int]], dict]:
    """What the encode node was told to show, its bar, and the outputs."""
    graph = demo_requests.with_options(demo_requests.graph(request, DEMO_VALUE))
    with server.events() as events:
        prompt_id = server.queue(graph)
        events.wait_for(lambda kind, data: _is_over(kind, data, prompt_id), timeout=300)
        outputs = server.wait(prompt_id, timeout=300)["outputs"]
        texts = [as_plain_text(text) for node, text in events.texts if node == "encode"]
        told = [data for kind, data, _ in events.messages if kind == "progress" and data.get("node") == "encode"]
    return texts, [(data["value"], data["max"]) for data in told], outputs


def _is_over(kind: str, data: dict, prompt_id: str) -> bool:
    return kind == "executing" and data.get("node") is None and data.get("prompt_id") == prompt_id


def test_node_of_comfyui_is_told_layers_and_then_what_it_took(server):
    texts, bar, _ = run(server, TEXT)
    assert texts[-1].startswith("encoded in ")
    assert texts[-2].startswith("layer 50 of 50, ")
    assert texts[-2].endswith(" GB resident")
    values, totals = zip(*bar, strict=True)
    assert list(values) == sorted(values)
    assert set(totals) == {50} == {values[-1]}


def test_node_of_ours_is_told_pictures_blocks_layers_and_its_own_text_last(server):
    texts, bar, outputs = run(server, REFERENCES)
    assert texts[-1] == outputs["encode"]["text"][0]
    lines = [text.partition("\n")[0] for text in texts]
    for start in ("resizing ref_image_", "preparing pictures ", "vision block ", "layer 50 of 50, ", "encoded in "):
        assert any(line.startswith(start) for line in lines), start
    values, totals = zip(*bar, strict=True)
    assert list(values) == sorted(values)
    assert set(totals) == {values[-1]}
