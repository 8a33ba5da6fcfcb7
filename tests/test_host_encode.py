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


# references


def test_prompt_alone_equals_encoder_and_has_no_refs(references, tiny_clip):  # noqa: F811
    output = references.execute(tiny_clip, "a fox", **SIZE)
    ((cond, extras),) = output.args[0]
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox").hidden.float())
    assert set(extras) == {"pooled_output", "minimax_token_tags"}
    assert output.args[2] == "a fox"


def test_latent_is_video_and_audio_on_the_models_grid(references, tiny_clip):  # noqa: F811
    latent = references.execute(tiny_clip, "", width=256, height=192, length=22).args[1]["samples"]
    assert latent.is_nested
    assert [tuple(t.shape) for t in latent.tensors] == [(1, 24, 7, 12, 16), (1, 32, 2, 37)]


@pytest.mark.parametrize("flat", [True, False])
def test_image_sockets_become_pictures_with_latents(references, tiny_clip, flat):  # noqa: F811
    from h3te.encoder import ImageReference, geometry

    first, second = picture(1, 96, 128), picture(2, 640, 480)
    sockets = {"ref_image_1": second, "ref_image_0": first, "ref_image_2": None}
    linked = {f"ref_images.{k}": v for k, v in sockets.items()} if flat else {"ref_images": sockets}
    output = references.execute(tiny_clip, "a fox", vae=StandInVAE(), **SIZE, **linked)
    fitted = [geometry.resize(first[0], 128, 96), geometry.resize(second[0], 192, 256)]
    ((cond, extras),) = output.args[0]
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox", [ImageReference(p) for p in fitted]).hidden.float())
    blocks = extras["minimax_refs"]
    assert [{k: v for k, v in block.items() if k != "latent"} for block in blocks] == [
        {"kind": "image", "picture_index": 0, "latent_h": 6, "latent_w": 8},
        {"kind": "image", "picture_index": 1, "latent_h": 16, "latent_w": 12},
    ]
    assert blocks[1]["latent"].shape == (1, 24, 1, 16, 12)
    assert float(blocks[1]["latent"].mean()) == pytest.approx(float(fitted[1].float().mean() / 255), abs=1e-4)
    assert "no VAE" not in said(output)


def test_every_picture_of_a_batch_is_a_reference(references, tiny_clip):  # noqa: F811
    images = {"ref_image_0": picture(1, batch=3)}
    output = references.execute(tiny_clip, "", vae=StandInVAE(), **SIZE, ref_images=images)
    assert len(output.args[0][0][1]["minimax_refs"]) == 3
    assert "<Picture 3>: " in output.args[2]


def test_text_encoder_only_reference_has_no_latent(references, tiny_clip):  # noqa: F811
    images = {"ref_image_0": {"image": picture(1)}, "ref_image_1": picture(2)}
    output = references.execute(tiny_clip, "", vae=StandInVAE(), **SIZE, ref_images=images)
    blocks = output.args[0][0][1]["minimax_refs"]
    assert [block["picture_index"] for block in blocks] == [1]
    assert "<Picture 2>: " in output.args[2]


def test_without_vae_references_condition_the_text_and_the_node_says_so(references, tiny_clip):  # noqa: F811
    output = references.execute(
        tiny_clip, "", **SIZE, ref_images={"ref_image_0": picture(1)}, ref_audios={"ref_audio_0": sound()}
    )
    assert "minimax_refs" not in output.args[0][0][1]
    assert "no VAE: references condition the text only" in said(output)
    assert "no audio VAE: sounds condition the text only" in said(output)


def test_video_with_soundtrack_and_sound_keep_the_hosts_order(references, tiny_clip):  # noqa: F811
    output = references.execute(
        tiny_clip, "a fox", vae=StandInVAE(), audio_vae=StandInAudioVAE(), width=256, height=192, length=39,
        ref_images={"ref_image_0": picture(1)}, ref_videos={"ref_video_0": picture(2, 64, 96, batch=30)},
        ref_video_audios={"ref_video_audio_0": sound(1.0)}, ref_audios={"ref_audio_0": sound(2.0, rate=16000)},
    )  # fmt: skip
    blocks = output.args[0][0][1]["minimax_refs"]
    assert [block["kind"] for block in blocks] == ["image", "video_audio", "audio"]
    assert {k: v for k, v in blocks[1].items() if not isinstance(v, torch.Tensor)} == {
        "kind": "video_audio", "latent_t": 7, "latent_h": 4, "latent_w": 6, "ref_audio_t": 40,
    }  # fmt: skip
    assert blocks[1]["audio_latent"].shape == (1, 32, 2, 40)
    assert set(blocks[2]) == {"kind", "ref_audio_t", "audio_latent"}
    assert blocks[2]["ref_audio_t"] == 80
    text = output.args[2]
    assert text.index("<Audio 1>: <Video 1>: <0.2 seconds>") < text.index("<Audio 2>: ")
    assert "22 frames of 96x64 (host's rule" in said(output)


def test_silent_video_has_no_audio_latent(references, tiny_clip):  # noqa: F811
    output = references.execute(
        tiny_clip, "", vae=StandInVAE(), **SIZE, ref_videos={"ref_video_0": picture(2, 64, 96, batch=5)}
    )
    (block,) = output.args[0][0][1]["minimax_refs"]
    assert (block["kind"], block["ref_audio_t"], block["audio_latent"]) == ("video", 0, None)


def test_chain_comes_after_the_sockets_in_its_own_order(references, tiny_clip):  # noqa: F811
    from h3te.nodes.chains import AudioItem, ImageItem, VideoItem

    chain = (
        AudioItem(sound()),
        VideoItem(picture(2, 64, 96, batch=24), fps=12.0),
        ImageItem(picture(3), vision_only=True),
    )
    output = references.execute(
        tiny_clip, "", vae=StandInVAE(), audio_vae=StandInAudioVAE(), references=chain, **{**SIZE, "length": 39},
        ref_images={"ref_image_0": picture(1)},
    )  # fmt: skip
    blocks = output.args[0][0][1]["minimax_refs"]
    assert [block["kind"] for block in blocks] == ["image", "audio", "video"]
    assert blocks[2]["latent_t"] == 12  # 24 frames at 12 fps are 48 at 24 fps, cut to 39
    labels = [output.args[2].index(label) for label in ("<Picture 1>", "<Audio 1>", "<Video 1>", "<Picture 2>")]
    assert labels == sorted(labels)


@pytest.mark.parametrize(("mode", "size"), [("match", (192, 256)), ("max", (480, 640)), ("none", (490, 650))])
def test_size_modes_of_reference_images(references, tiny_clip, mode, size):  # noqa: F811
    image = picture(2, 650, 490) if mode == "none" else picture(2, 640, 480)
    tokens = []
    spy = type(tiny_clip).tokenize

    def tokenize(text, **kwargs):
        tokens.append(kwargs["minimax_ref_items"][0]["data"].shape)
        return spy(tiny_clip, text, **kwargs)

    tiny_clip.tokenize = tokenize
    output = references.execute(
        tiny_clip, "", vae=StandInVAE(), ref_image_size=mode, **SIZE, ref_images={"ref_image_0": image}
    )
    assert tokens == [(1, size[1], size[0], 3)]
    (block,) = output.args[0][0][1]["minimax_refs"]
    assert block["latent"].shape[-2:] == (block["latent_h"], block["latent_w"])
    assert block["latent_h"] % 2 == block["latent_w"] % 2 == 0


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


def test_node_text_counts_tokens_in_all_and_per_part(references, tiny_clip):  # noqa: F811
    output = references.execute(tiny_clip, "a fox", **SIZE, ref_images={"ref_image_0": picture(1)})
    text = said(output)
    count = output.args[0][0][0].shape[1]
    assert f"{count} tokens in all" in text
    assert "Picture 1: " in text
    assert "prompt: 2 tokens" in text
    assert "cpu, 0.01 GB resident, 0.00 GB offloaded" in text
    assert "memory plan: weights 0.01 GB, activations 0.00 GB; " in text
    assert " s, cache: none" in text


def test_node_text_is_sent_to_the_node_when_a_server_runs(references, tiny_clip, monkeypatch):  # noqa: F811
    import sys
    from types import SimpleNamespace

    sent = []
    instance = SimpleNamespace(send_progress_text=lambda text, node: sent.append((node, text)))
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    monkeypatch.setattr(references, "hidden", SimpleNamespace(unique_id="7"))
    output = references.execute(tiny_clip, "a fox", **SIZE)
    assert sent == [("7", said(output))]


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


def test_soundtrack_without_its_video_is_refused(references, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match="ref_video_audio_1: expected a reference video on ref_video_1"):
        references.execute(tiny_clip, "", **SIZE, ref_video_audios={"ref_video_audio_1": sound()})


def test_short_reference_video_is_refused_by_its_socket(references, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match="ref_video_0: expected a reference video of at least 5 frames"):
        references.execute(tiny_clip, "", **SIZE, ref_videos={"ref_video_0": picture(1, batch=4)})


@pytest.mark.parametrize(
    ("sockets", "named"),
    [
        ({"ref_audios": {"ref_audio_0": picture(1)}}, "ref_audio_0"),
        (
            {"ref_videos": {"ref_video_0": picture(1, 64, 64, batch=22)}, "ref_video_audios": {"ref_video_audio_0": 1}},
            "soundtrack of ref_video_0",
        ),
    ],
    ids=["sound", "soundtrack"],
)
def test_what_is_no_sound_is_refused_without_an_audio_vae_too(references, tiny_clip, sockets, named):  # noqa: F811
    with pytest.raises(ValueError, match=f"{named}: expected AUDIO with one waveform"):
        references.execute(tiny_clip, "a fox", **SIZE, **sockets)


def test_batch_of_sounds_is_refused_by_its_socket(references, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match=r"ref_audio_0: expected AUDIO with one waveform .* got waveform \[2, 2"):
        references.execute(
            tiny_clip, "", audio_vae=StandInAudioVAE(), **SIZE, ref_audios={"ref_audio_0": sound(batch=2)}
        )


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
