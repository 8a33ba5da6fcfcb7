"""Chains of references in a running ComfyUI: a video file, links into every widget, one chain in two branches."""

from __future__ import annotations

from dataclasses import replace

import demo_requests
import pytest
import torch
from demo_requests import REFERENCES, node
from h3te.encoder import AudioReference, ImageReference, VideoReference, geometry, load_encoder
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.host_server import (
    DEMO_VALUE,
    PromptFailed,
    demo_folder,  # noqa: F401
    host_server,  # noqa: F401
)
from h3te_tests.video_files import write_video
from safetensors.torch import load_file

WIDTH, HEIGHT, LENGTH = 256, 192, 39
FPS, FRAMES, SHORT = 30, 75, 20
PROMPT = "The duck of <Picture 1> moves as in <Video 1> to the sound of <Audio 1>."


@pytest.fixture(scope="module")
def server(host_server, tmp_path_factory):  # noqa: F811
    demo_requests.upload_pictures(host_server, (REFERENCES,))
    folder = tmp_path_factory.mktemp("videos")
    for name, frames, tone in (("h3te_clip.mp4", FRAMES, 2.0), ("h3te_short.mp4", SHORT, 0.0)):
        host_server.upload_image(write_video(folder / name, frames, FPS, 160, 96, tone))
    return host_server


@pytest.fixture(scope="module")
def direct(server):
    return load_encoder(server.base / "models" / "text_encoders" / DEMO_VALUE)


def encode(name: str, chain: str) -> dict:
    """Encode node and probe, behind the chain node of that name."""
    size = {"width": WIDTH, "height": HEIGHT, "length": LENGTH}
    asked = {"clip": ["loader", 0], "prompt": PROMPT, "ref_image_size": "match", "references": [chain, 0]}
    return {
        f"encode_{name}": node("H3TEEncodeReferences", **asked, **size),
        f"probe_{name}": node("H3TEConditioningProbe", conditioning=[f"encode_{name}", 0], name=f"h3te_chain_{name}"),
    }


def sources(video: str = "h3te_clip.mp4") -> dict:
    graph = {
        "loader": node("H3TELoadTextEncoder", text_encoder=DEMO_VALUE, device="auto"),
        "picture": node("LoadImage", image="rubber_duck.png"),
        "file": node("LoadVideo", file=video),
    }
    return demo_requests.with_options(graph)


def video_node(**inputs) -> dict:
    widgets = {"fps": 24.0, "with_sound": True, "vision_only": False}
    return node("H3TEReferenceVideo", **{**widgets, "video": ["file", 0], **inputs})


def image_node(**inputs) -> dict:
    widgets = {"vision_only": False, "timed": False, "second": 0.0}
    return node("H3TEReferenceImage", **{**widgets, "image": ["picture", 0], **inputs})


def duck() -> ImageReference:
    return demo_requests.references(replace(REFERENCES, width=WIDTH, height=HEIGHT))[0]


@pytest.fixture(scope="module")
def used(comfy, server) -> torch.Tensor:  # noqa: F811
    """The 39 frames at 24 fps of the video file, as this ComfyUI decodes it: of 30 every fifth is dropped."""
    from comfy_api.input_impl import VideoFromFile

    frames = VideoFromFile(str(server.base / "input" / "h3te_clip.mp4")).get_components().images
    kept = [k for k in range(FRAMES) if k % 5 != 2][:LENGTH]
    return torch.stack([geometry.resize(frame, 160, 96) for frame in frames[kept]])


def probed(server, name: str) -> dict:
    return load_file(server.base / "output" / f"h3te_chain_{name}.safetensors")


def test_video_file_with_sound_and_picture_in_a_chain_equal_the_encoder_called_directly(server, direct, used):
    chain = {"first": image_node(), "second": video_node(references=["first", 0])}
    outputs = server.run({**sources(), **chain, **encode("video", "second")}, timeout=300)
    ours = direct.encode(PROMPT, [duck(), VideoReference(used, has_audio=True)])
    found = probed(server, "video")
    assert torch.equal(found["hidden"], ours.hidden.float())
    assert torch.equal(found["tags"], ours.token_tags)
    text = outputs["encode_video"]["text"][0]
    assert "Video 1 = Reference Video (H3TE) 2 of the chain: 39 frames (1.6 s) used of 75 at 30 fps (2.5 s)" in text
    assert "Audio 1 = soundtrack of Reference Video (H3TE) 2 of the chain: 2.0 s, used whole" in text


def test_two_branches_of_one_chain_do_not_touch_each_other(server, direct, used):
    graph = {
        **sources(),
        "shared": image_node(),
        "sound": node("GetVideoComponents", video=["file", 0]),
        "left": video_node(references=["shared", 0], with_sound=False),
        "right": node("H3TEReferenceAudio", audio=["sound", 1], vision_only=False, references=["shared", 0]),
        **encode("left", "left"),
        **encode("right", "right"),
        **encode("shared", "shared"),
    }
    server.run(graph, timeout=300)
    for name, references in (
        ("left", [duck(), VideoReference(used)]),
        ("right", [duck(), AudioReference()]),
        ("shared", [duck()]),
    ):
        assert torch.equal(probed(server, name)["hidden"], direct.encode(PROMPT, references).hidden.float()), name


def test_every_widget_takes_its_value_over_a_link(server, direct, used):
    on, off = node("PrimitiveBoolean", value=True), node("PrimitiveBoolean", value=False)
    links = {
        "on": on,
        "off": off,
        "rate": node("PrimitiveFloat", value=30.0),
        "second": node("PrimitiveFloat", value=2.0),
    }
    graph = {
        **sources(),
        **links,
        "parts": node("GetVideoComponents", video=["file", 0]),
        "first": image_node(vision_only=["on", 0], timed=["off", 0], second=["second", 0]),
        "second_video": node(
            "H3TEReferenceVideo", frames=["parts", 0], fps=["rate", 0], with_sound=["off", 0], vision_only=["on", 0],
            soundtrack=["parts", 1], references=["first", 0],
        ),
        "third": node("H3TEReferenceAudio", audio=["parts", 1], vision_only=["on", 0], references=["second_video", 0]),
        **encode("linked", "third"),
    }  # fmt: skip
    text = server.run(graph, timeout=300)["encode_linked"]["text"][0]
    ours = direct.encode(PROMPT, [duck(), VideoReference(used), AudioReference()])
    assert torch.equal(probed(server, "linked")["hidden"], ours.hidden.float())
    assert text.count("vision only, no latent") == 3


def test_short_video_file_fails_at_its_own_node_and_the_next_prompt_runs(server):
    graph = {**sources("h3te_short.mp4"), "only": video_node(), **encode("short", "only")}
    with pytest.raises(PromptFailed, match=r"H3TEReferenceVideo \(only\): .*at least 2 s .* got 20 at 30 fps"):
        server.run(graph, timeout=120)
    server.run({**sources(), "only": video_node(), **encode("after", "only")}, timeout=120)
