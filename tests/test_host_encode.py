"""The two encode nodes with stand-in VAEs: what they emit, in the shapes that ComfyUI's H3 sampler reads."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import (  # noqa: F401 (fixtures)
    StandInAudioVAE,
    StandInVAE,
    comfy,
    picture,
    sound,
    tiny_clip,
)

SIZE = {"width": 256, "height": 192, "length": 22}


@pytest.fixture
def references(comfy):  # noqa: F811
    from h3te.nodes.encode_references import EncodeReferences

    return EncodeReferences


@pytest.fixture
def keyframes(comfy):  # noqa: F811
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    return EncodeKeyframes


def said(output) -> str:
    return output.ui["text"][0]


def pixels(image: torch.Tensor) -> torch.Tensor:
    return (image[0] * 255).round().to(torch.uint8)


# keyframes


@pytest.mark.parametrize("given", [(), ("first",), ("last",), ("first", "last")])
def test_keyframes_are_fitted_as_released(keyframes, tiny_clip, given):  # noqa: F811
    from h3te.encoder import ImageReference, geometry

    images = {"first": picture(1, 100, 100), "last": picture(2, 300, 100)}
    linked = {f"{name}_frame": images[name] for name in given}
    output = keyframes.execute(tiny_clip, "a fox", vae=StandInVAE(), **SIZE, **linked)
    fits = (geometry.resize, geometry.cover_crop)
    fitted = [fit(images[name][0], 256, 192) for fit, name in zip(fits, given, strict=False)]
    ((cond, extras),) = output.args[0]
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox", [ImageReference(p) for p in fitted]).hidden.float())
    blocks = extras.get("minimax_keyframes", [])
    assert [block["resolved_frame_index"] for block in blocks] == [{"first": 0, "last": 21}[name] for name in given]
    assert all(set(block) == {"resolved_frame_index", "latent"} for block in blocks)
    assert all(block["latent"].shape == (1, 24, 1, 12, 16) for block in blocks)
    assert output.args[3:] == (256, 192, 22)


def test_without_vae_keyframes_do_not_pin_and_the_node_says_so(keyframes, tiny_clip):  # noqa: F811
    output = keyframes.execute(tiny_clip, "", **SIZE, first_frame=picture(1))
    assert "minimax_keyframes" not in output.args[0][0][1]
    assert "no VAE: keyframes will not pin frames" in said(output)
    assert "no VAE" not in said(keyframes.execute(tiny_clip, "", **SIZE))


def test_chained_keyframes_follow_the_sockets(keyframes, tiny_clip):  # noqa: F811
    from h3te.nodes.chains import KeyframeItem

    chain = (KeyframeItem(picture(2), 8, fit="pad"), KeyframeItem(picture(3), -2, show=False))
    output = keyframes.execute(tiny_clip, "", vae=StandInVAE(), keyframes=chain, **SIZE, first_frame=picture(1))
    blocks = output.args[0][0][1]["minimax_keyframes"]
    assert [block["resolved_frame_index"] for block in blocks] == [0, 8, 20]
    assert "<Picture 2>" in output.args[2]
    assert "<Picture 3>" not in output.args[2]


@pytest.mark.parametrize("frame", [22, -23])
def test_keyframe_outside_the_video_is_refused(keyframes, tiny_clip, frame):  # noqa: F811
    from h3te.nodes.chains import KeyframeItem

    with pytest.raises(ValueError, match=f"keyframe: expected a frame from -22 to 21 .* got {frame}"):
        keyframes.execute(tiny_clip, "", **SIZE, keyframes=(KeyframeItem(picture(1), frame),))


def test_fit_applies_to_both_sockets(keyframes, tiny_clip):  # noqa: F811
    released = keyframes.execute(tiny_clip, "", **SIZE, first_frame=picture(1), last_frame=picture(2, 300, 100))
    stretched = keyframes.execute(
        tiny_clip, "", **SIZE, first_frame=picture(1), last_frame=picture(2, 300, 100), fit="stretch"
    )
    assert not torch.equal(released.args[0][0][0], stretched.args[0][0][0])


# both


def test_size_and_length_off_the_grid_are_snapped_and_said(keyframes, tiny_clip):  # noqa: F811
    output = keyframes.execute(tiny_clip, "", width=250, height=200, length=23)
    assert output.args[3:] == (256, 192, 39)
    assert "size 250x200 became 256x192" in said(output)
    assert "length 23 became 39" in said(output)


def test_batch_on_a_keyframe_socket_is_refused_by_name(keyframes, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match="first_frame: expected one picture, got a batch of 2"):
        keyframes.execute(tiny_clip, "", **SIZE, first_frame=picture(1, batch=2))


def test_non_finite_picture_is_refused_by_its_socket(keyframes, references, tiny_clip):  # noqa: F811
    broken = picture(1)
    broken[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="last_frame: expected finite pixels"):
        keyframes.execute(tiny_clip, "", **SIZE, last_frame=broken)
    with pytest.raises(ValueError, match="ref_image_0: expected finite pixels"):
        references.execute(tiny_clip, "", **SIZE, ref_images={"ref_image_0": broken})


def test_chain_of_something_else_is_refused(references, keyframes, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match="expected references to be a chain of ImageItem, VideoItem, AudioItem"):
        references.execute(tiny_clip, "", **SIZE, references=[1])
    with pytest.raises(ValueError, match="expected keyframes to be a chain of KeyframeItem, got tuple"):
        keyframes.execute(tiny_clip, "", **SIZE, keyframes=(1,))


def test_other_clips_are_refused_by_name(references, keyframes):
    class Flux:
        tokenizer = None
        cond_stage_model = torch.nn.Linear(1, 1)

    for node in (references, keyframes):
        with pytest.raises(ValueError, match="expected a MiniMax H3 text encoder on clip, got Linear"):
            node.execute(Flux(), "", **SIZE)


def test_own_h3_clip_of_the_host_is_called_by_its_two_methods_alone(references, keyframes):
    class HostClip:
        """Answers nothing but what ComfyUI's H3 CLIP is documented to answer."""

        class tokenizer:
            qwen3vl_32b = None

        def tokenize(self, text, **kwargs):
            return {"qwen3vl_32b": [[(text, sorted(kwargs))]]}

        def encode_from_tokens_scheduled(self, tokens):
            return [[torch.zeros(1, 1, 8), {"tokens": tokens}]]

    output = references.execute(HostClip(), "a fox", **SIZE, ref_images={"ref_image_0": picture(1)})
    assert output.args[0][0][1]["tokens"] == {"qwen3vl_32b": [[("a fox", ["minimax_ref_items"])]]}
    assert output.args[2] == ""
    assert "ComfyUI's own H3 text encoder" in said(output)
    output = keyframes.execute(HostClip(), "a fox", **SIZE)
    assert output.args[0][0][1]["tokens"] == {"qwen3vl_32b": [[("a fox", ["images"])]]}
