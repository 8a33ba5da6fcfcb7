"""A list of prompts in a running ComfyUI: one node, one pass over the weights, lists of outputs."""

from __future__ import annotations

import demo_requests
import pytest
import torch
from demo_requests import KEYFRAMES, REFERENCES, node
from h3te.encoder import load_encoder
from h3te_tests.host_server import (
    DEMO_VALUE,
    demo_folder,  # noqa: F401
    host_server,  # noqa: F401
)
from safetensors.torch import load_file

PROMPTS = ["a fox", "a second, longer prompt about <Picture 1> in the snow", "an owl"]


@pytest.fixture(scope="module")
def server(host_server):  # noqa: F811
    demo_requests.upload_pictures(host_server)
    return host_server


@pytest.mark.parametrize("request_", [REFERENCES, KEYFRAMES], ids=lambda r: r.name)
def test_list_of_prompts_is_one_pass_and_lists_of_outputs(server, request_):
    graph = demo_requests.with_options(demo_requests.graph(request_, DEMO_VALUE))
    prefix = f"h3te_list_{request_.name}_"
    graph["texts"] = node("H3TETextList", texts="\n".join(PROMPTS), prefix=prefix)
    graph["encode"]["inputs"]["prompt"] = ["texts", 0]
    graph["probe"]["inputs"]["name"] = ["texts", 1]
    graph["shown"] = node("PreviewAny", source=["encode", 2])
    with server.events() as events:
        prompt_id = server.queue(graph)
        steps = []
        events.wait_for(lambda kind, data: _steps(kind, data, steps) or _is_over(kind, data, prompt_id), timeout=300)
        outputs = server.wait(prompt_id, timeout=300)["outputs"]
    encoder = load_encoder(server.base / "models" / "text_encoders" / DEMO_VALUE)
    references = demo_requests.references(request_)
    for i, prompt in enumerate(PROMPTS):
        ours = encoder.encode(prompt, references)
        got = load_file(server.base / "output" / f"{prefix}{i}.safetensors")
        assert torch.equal(got["hidden"], ours.hidden.float())
        assert torch.equal(got["tags"], ours.token_tags)
    assert steps == sorted(steps)  # one bar that never starts again: one pass
    assert max(steps) == encoder.config.vision.depth + len(encoder.model.language_model.layers)
    assert len(outputs["probe"]["text"]) == len(outputs["shown"]["text"]) == len(PROMPTS)
    assert all(text.endswith(prompt) for text, prompt in zip(outputs["shown"]["text"], PROMPTS, strict=True))
    assert "\n".join(outputs["encode"]["text"]).count(f"for {len(PROMPTS)} prompts in one pass") == len(PROMPTS)


def _steps(kind: str, data: dict, seen: list[int]) -> bool:
    if kind == "progress" and data.get("node") == "encode":
        seen.append(data["value"])
    return False


def _is_over(kind: str, data: dict, prompt_id: str) -> bool:
    return kind == "executing" and data.get("node") is None and data.get("prompt_id") == prompt_id
