"""A real ComfyUI, booted once and driven over HTTP: the main job, refusals, Stop, the next prompt."""

from __future__ import annotations

import json

import demo_claims
import demo_packed
import demo_requests
import pytest
import torch
from demo_requests import AFTER_STOP, KEYFRAMES, REFERENCES, STOPPED, TEXT
from h3te.encoder import load_encoder
from h3te_tests.host_server import (
    DEMO_VALUE,
    PromptFailed,
    ValidationError,
    demo_folder,  # noqa: F401
    host_server,  # noqa: F401
)
from packed_files import write_packed

NODES = {
    "H3TELoadTextEncoder": ("Load MiniMax H3 Text Encoder (H3TE)", ["CLIP"]),
    "H3TEEncodeReferences": ("Encode Prompt + Reference Image (H3TE)", ["CONDITIONING", "LATENT", "STRING", "IMAGE"]),
    "H3TEEncodeKeyframes": (
        "Encode Video Keyframes (H3TE)",
        ["CONDITIONING", "LATENT", "STRING", "INT", "INT", "INT", "IMAGE"],
    ),
    "H3TEReferenceImage": ("Reference Image (H3TE)", ["H3TE_REFERENCES"]),
    "H3TEReferenceVideo": ("Reference Video (H3TE)", ["H3TE_REFERENCES"]),
    "H3TEReferenceAudio": ("Reference Audio (H3TE)", ["H3TE_REFERENCES"]),
    "H3TEKeyframe": ("Keyframe (H3TE)", ["H3TE_KEYFRAMES"]),
    "H3TEShowPresentation": ("Show Presentation (H3TE)", ["IMAGE", "STRING", "INT"]),
    "H3TESaveConditioning": ("Save MiniMax H3 Conditioning (H3TE)", ["CONDITIONING", "STRING"]),
    "H3TELoadConditioning": ("Load MiniMax H3 Conditioning (H3TE)", ["CONDITIONING", "STRING"]),
    "H3TEClearCaches": ("Clear MiniMax H3 Caches (H3TE)", ["*", "INT"]),
    "H3TECheckpointDoctor": ("MiniMax H3 Checkpoint Doctor (H3TE)", ["STRING", "IMAGE"]),
    "H3TEEncoderOptions": ("MiniMax H3 Encoder Options (H3TE)", ["OPTIONS"]),
}


@pytest.fixture(scope="module")
def server(host_server):  # noqa: F811
    demo_requests.upload_pictures(host_server)
    return host_server


@pytest.fixture(scope="module")
def direct(server):
    return load_encoder(server.base / "models" / "text_encoders" / DEMO_VALUE)


def run(server, request, **changes) -> dict:
    graph = demo_requests.with_options(demo_requests.graph(request, DEMO_VALUE))
    graph["encode"]["inputs"].update(changes)
    return server.run(graph, timeout=300)


@pytest.mark.parametrize("node", NODES)
def test_node_is_listed_under_its_title_and_category(server, node):
    info = server.object_info(node)[node]
    title, outputs = NODES[node]
    assert info["display_name"] == title
    assert info["category"] == "MiniMax H3/text encoder"
    assert info["output"] == outputs


@pytest.mark.parametrize("request_", [TEXT, REFERENCES, KEYFRAMES], ids=lambda r: r.name)
def test_graph_equals_the_encoder_called_directly(server, direct, request_):
    run(server, request_)
    ours = direct.encode(request_.prompt, demo_requests.references(request_))
    graph = demo_claims.probed(server, request_)
    assert torch.equal(graph["hidden"], ours.hidden.float())
    assert torch.equal(graph["tags"], ours.token_tags)


@pytest.fixture(scope="module")
def packed(server, demo_folder):  # noqa: F811
    """The nvfp4_awq file of the demo weights among the server's models."""
    file = server.base / "models" / "text_encoders" / demo_packed.FILES["nvfp4_awq"]
    return write_packed(demo_folder, file, "nvfp4_awq")


@pytest.mark.parametrize("reader", ["auto", "stream"])
def test_packed_file_in_the_graph_equals_the_encoder_called_directly(server, packed, direct, reader):
    graph = demo_requests.with_options(demo_requests.graph(KEYFRAMES, packed.name), reader=reader)
    assert "nvfp4 with AWQ scales, int8 embedding" in "\n".join(server.run(graph, timeout=300)["encode"]["text"])
    encoder = load_encoder(packed, tokenizer=direct.tokenizer)
    ours = encoder.encode(KEYFRAMES.prompt, demo_requests.references(KEYFRAMES))
    assert torch.equal(demo_claims.probed(server, KEYFRAMES)["hidden"], ours.hidden.float())


def test_download_that_ended_early_is_refused_before_the_run(server, packed):
    cut = packed.with_name("cut_short.safetensors")
    cut.write_bytes(packed.read_bytes()[:-1000])
    with pytest.raises(ValidationError) as refused:
        server.run(demo_requests.graph(TEXT, cut.name))
    assert "The download is incomplete: download the file again." in json.dumps(refused.value.node_errors)


def test_conditioning_has_the_host_keys_and_device(server):
    facts = json.loads(run(server, TEXT, text="keys")["probe"]["text"][0])
    assert facts == {"keys": ["minimax_token_tags", "pooled_output"], "dtype": "torch.float32", "device": "cpu"}


def test_node_says_what_it_did_without_javascript(server, direct):
    text = "\n".join(run(server, REFERENCES, prompt="another <Picture 1>")["encode"]["text"])
    tokens = len(direct.encode("another <Picture 1>", demo_requests.references(REFERENCES)).token_ids)
    assert f"{tokens} tokens in all" in text
    assert "no VAE: references condition the text only" in text
    assert "demo weights: output is meaningless" in text
    assert "GB resident" in text


def test_unknown_file_is_refused_before_the_run(server):
    graph = demo_requests.graph(TEXT, "no_such_file.safetensors")
    with pytest.raises(ValidationError) as refused:
        server.run(graph)
    assert "loader" in refused.value.node_errors


def test_wrong_kind_of_clip_is_refused_by_name(server):
    with pytest.raises((PromptFailed, ValidationError)):
        graph = demo_requests.graph(KEYFRAMES, DEMO_VALUE)
        graph["encode"]["inputs"]["clip"] = ["picture_0", 0]
        server.run(graph)


def test_another_layer_is_refused_by_name_and_the_next_prompt_runs(server, direct):
    graph = demo_requests.graph(TEXT, DEMO_VALUE)
    graph["layer"] = {
        "class_type": "CLIPSetLastLayer",
        "inputs": {"clip": ["loader", 0], "stop_at_clip_layer": -2},
    }
    graph["encode"]["inputs"]["clip"] = ["layer", 0]
    with pytest.raises(PromptFailed, match="CLIPSetLastLayer"):
        server.run(graph)
    run(server, TEXT, text="still works")
    assert torch.equal(demo_claims.probed(server, TEXT)["hidden"], direct.encode("still works").hidden.float())


def test_vision_marker_in_a_prompt_is_refused_by_name(server):
    with pytest.raises(PromptFailed, match="<\\|image_pad\\|>"):
        run(server, TEXT, text="a <|image_pad|> of nothing")


def test_stop_in_the_middle_and_the_next_prompt_is_right(server, direct):
    with server.events() as events:
        prompt_id = server.queue(demo_requests.graph(STOPPED, DEMO_VALUE))
        events.wait_for(lambda kind, data: kind == "progress" and 2 <= data["value"] < data["max"], timeout=120)
        server.interrupt()
        entry = server.wait(prompt_id, timeout=120)
    assert not entry["status"]["completed"]
    assert "execution_interrupted" in [kind for kind, _ in entry["status"]["messages"]]
    run(server, AFTER_STOP)
    expected = direct.encode(AFTER_STOP.prompt).hidden.float()
    assert torch.equal(demo_claims.probed(server, AFTER_STOP)["hidden"], expected)


def test_only_needed_shards_are_mapped(server, direct):
    import psutil

    run(server, TEXT, text="mapped files")
    maps = {region.path.rsplit("/", 1)[-1] for region in psutil.Process(server.process.pid).memory_maps()}
    catalog = direct.source.catalog
    assert maps >= {file.name for file in catalog.files_needed}
    assert maps & {file.name for file in catalog.files_unneeded} == set()


def test_log_has_no_traceback_of_the_pack_at_start(server):
    start = server.log().split("got prompt")[0]
    assert "IMPORT FAILED" not in start
    assert "Traceback" not in start
