"""preview_only and Show Presentation in a running ComfyUI: what follows is skipped without an error."""

from __future__ import annotations

import demo_requests
import pytest
from demo_requests import KEYFRAMES, REFERENCES, node
from h3te_tests.host_server import DEMO_VALUE, demo_folder, host_server  # noqa: F401 (fixtures)

WIDGET = "preview_only"


@pytest.fixture(scope="module")
def server(host_server):  # noqa: F811
    demo_requests.upload_pictures(host_server)
    return host_server


def preview(request_, prefix: str) -> dict:
    graph = demo_requests.graph(request_, DEMO_VALUE)
    graph["encode"]["inputs"][WIDGET] = True
    graph["saved"] = node("H3TESaveConditioning", conditioning=["encode", 0], filename_prefix=prefix)
    graph["shown"] = node("PreviewAny", source=["encode", 2])
    last = 3 if request_ is REFERENCES else 6
    graph["seen"] = node("PreviewImage", images=["encode", last])
    return graph


@pytest.mark.parametrize("request_", [REFERENCES, KEYFRAMES], ids=lambda r: r.name)
def test_what_follows_a_preview_is_skipped_and_the_presentation_arrives(server, request_):
    prefix = f"preview_{request_.name}"
    history = server.wait(server.queue(preview(request_, f"{prefix}/h3")), timeout=300)
    outputs = history["outputs"]
    assert not (server.base / "output" / prefix).exists()
    assert "saved" not in outputs and "probe" not in outputs
    assert (
        outputs["encode"]["text"][0].startswith("preview, nothing encoded: ")
        or "\npreview" in outputs["encode"]["text"][0]
    )
    assert len(outputs["encode"]["images"]) == len(outputs["seen"]["images"]) == 1
    assert outputs["shown"]["text"][0].endswith(request_.prompt)


def test_show_presentation_takes_a_prompt_over_a_link_and_no_clip(server):
    graph = {
        "prompts": node("H3TETextList", texts="a fox\nan owl", prefix="x"),
        "show": node(
            "H3TEShowPresentation", prompt=["prompts", 0], width=256, height=192, length=22, ref_image_size="match"
        ),
        "shown": node("PreviewAny", source=["show", 1]),
        "count": node("PreviewAny", source=["show", 2]),
    }
    outputs = server.wait(server.queue(graph), timeout=300)["outputs"]
    assert outputs["shown"]["text"] == ["a fox", "an owl"]
    assert all(int(text) > 0 for text in outputs["count"]["text"])
    assert len(outputs["show"]["images"]) == 2
