"""Save Conditioning, Load Conditioning and Clear Caches in a real ComfyUI: encoded once, loaded by another graph."""

from __future__ import annotations

import json

import demo_claims
import demo_requests
import pytest
import torch
from demo_requests import KEYFRAMES, TEXT, node
from h3te_tests.host_server import (
    DEMO_VALUE,
    PromptFailed,
    ValidationError,
    demo_folder,  # noqa: F401
    host_server,  # noqa: F401
)


@pytest.fixture(scope="module")
def server(host_server):  # noqa: F811
    demo_requests.upload_pictures(host_server)
    return host_server


def saving(request, prefix: str, **changes) -> dict:
    """The request's graph, with the conditioning saved on its way to the probe."""
    graph = demo_requests.graph(request, DEMO_VALUE)
    graph["encode"]["inputs"].update(changes)
    graph["save"] = node("H3TESaveConditioning", conditioning=["encode", 0], filename_prefix=prefix)
    graph["probe"]["inputs"]["conditioning"] = ["save", 0]
    return graph


def loading(file: str) -> dict:
    """A graph without encoder: the loaded conditioning goes to the probe and into a second file."""
    return {
        "load": node("H3TELoadConditioning", file=file),
        "probe": node("H3TEConditioningProbe", conditioning=["load", 0], name="h3te_loaded"),
    }


def loaded(server) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(server.base / "output" / "h3te_loaded.safetensors")


@pytest.mark.parametrize("request_", [TEXT, KEYFRAMES], ids=lambda r: r.name)
def test_another_graph_loads_to_the_bit_what_one_saved(server, request_):
    said = server.run(saving(request_, f"round/{request_.name}"), timeout=300)["save"]["text"][0]
    file = f"round/{request_.name}_00001_.safetensors [output]"
    assert said.startswith(f"saved {file}\n")
    outputs = server.run(loading(file))
    assert " tokens, " in outputs["load"]["text"][0] if "load" in outputs else True
    before, after = demo_claims.probed(server, request_), loaded(server)
    assert torch.equal(before["hidden"], after["hidden"]) and torch.equal(before["tags"], after["tags"])
    offered = server.object_info("H3TELoadConditioning")["H3TELoadConditioning"]["input"]["required"]["file"]
    assert file in (offered[0] if isinstance(offered[0], list) else offered[1]["options"])


def test_replaced_file_is_loaded_again_and_an_equal_one_is_not(server):
    server.run(saving(TEXT, "again/h3", text="first"), timeout=300)
    graph, path = loading("again/h3_00001_.safetensors [output]"), server.base / "output" / "again"
    server.run(graph)
    first = loaded(server)["hidden"]
    server.run(saving(TEXT, "again/h3", text="another prompt of other length"), timeout=300)
    (path / "h3_00002_.safetensors").replace(path / "h3_00001_.safetensors")
    server.run(graph)
    assert loaded(server)["hidden"].shape != first.shape


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("nothing.safetensors", "got no such file in"), ("../../secret.safetensors", "a path that leads elsewhere"),
        ("harbour_dawn.png", "which is never opened"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_loaded_is_refused_before_the_run(server, file, said):
    with pytest.raises(ValidationError) as refused:
        server.run(loading(file))
    assert said in json.dumps(refused.value.node_errors)


def test_prefix_that_leads_out_fails_by_name(server):
    with pytest.raises(PromptFailed, match="Save MiniMax H3 Conditioning"):
        server.run(saving(TEXT, "../../h3"), timeout=300)
    assert list(server.base.parent.glob("h3_*")) == []


def test_clear_runs_at_every_queue_and_passes_on_what_came(server):
    graph = {
        "text": node("PrimitiveString", value="kept"),
        "clear": node("H3TEClearCaches", what="all", anything=["text", 0]),
        "shown": node("PreviewAny", source=["clear", 0]),
    }
    for _ in range(2):
        outputs = server.run(graph)
        assert outputs["clear"]["text"][0].startswith("freed ")
        assert outputs["shown"]["text"][0] == "kept"
    with server.events() as events:
        prompt_id = server.queue(graph)
        server.wait(prompt_id)
        events.wait_for(lambda kind, data: kind == "executing" and data.get("node") == "clear", timeout=30)
