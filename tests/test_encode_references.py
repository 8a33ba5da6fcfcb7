"""Encode Prompt + Reference Image with stand-in VAEs: what it emits, in the shapes that ComfyUI's H3 sampler reads."""

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
LONG_ENOUGH = 48  # frames of a reference video


@pytest.fixture
def encode(comfy, tiny_clip):  # noqa: F811
    """The node called with plain values: (CONDITIONING, samples, presentation, node text)."""
    from h3te.nodes.encode_references import EncodeReferences

    def run(prompt="", clip=tiny_clip, **inputs):
        output = EncodeReferences.execute(clip=clip, prompt=prompt, **{**SIZE, **inputs})
        (conditioning,), (latent,), (presentation,), _ = output.args
        return conditioning, latent["samples"], presentation, output.ui["text"][0]

    return run


def clip_of(frames: int = LONG_ENOUGH, seed: int = 2, height: int = 64, width: int = 96) -> torch.Tensor:
    return picture(seed, height, width, batch=frames)


def refs(conditioning) -> list:
    return conditioning[0][1].get("minimax_refs", [])


def test_prompt_alone_equals_encoder_and_has_no_refs(encode, tiny_clip):  # noqa: F811
    ((cond, extras),), _, presentation, _ = encode("a fox")
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox").hidden.float())
    assert set(extras) == {"pooled_output", "minimax_token_tags", "h3te"}
    assert extras["h3te"]["presentation"] == extras["h3te"]["prompt"] == "a fox"
    assert presentation == "a fox"


def test_latent_is_video_and_audio_on_the_models_grid(encode):
    _, samples, _, _ = encode(width=256, height=192, length=22)
    assert samples.is_nested
    assert [tuple(t.shape) for t in samples.tensors] == [(1, 24, 7, 12, 16), (1, 32, 2, 37)]


@pytest.mark.parametrize("flat", [True, False])
def test_image_sockets_become_pictures_with_latents(encode, tiny_clip, flat):  # noqa: F811
    from h3te.encoder import ImageReference, geometry

    first, second = picture(1, 96, 128), picture(2, 640, 480)
    sockets = {"ref_image_1": second, "ref_image_0": first, "ref_image_2": None}
    linked = {f"ref_images.{k}": v for k, v in sockets.items()} if flat else {"ref_images": sockets}
    conditioning, _, _, said = encode("a fox", vae=StandInVAE(), **linked)
    fitted = [geometry.resize(first[0], 128, 96), geometry.resize(second[0], 192, 256)]
    expected = tiny_clip.encoder.encode("a fox", [ImageReference(p) for p in fitted]).hidden.float()
    assert torch.equal(conditioning[0][0], expected)
    blocks = refs(conditioning)
    assert [{k: v for k, v in block.items() if k != "latent"} for block in blocks] == [
        {"kind": "image", "picture_index": 0, "latent_h": 6, "latent_w": 8},
        {"kind": "image", "picture_index": 1, "latent_h": 16, "latent_w": 12},
    ]
    assert blocks[1]["latent"].shape == (1, 24, 1, 16, 12)
    assert float(blocks[1]["latent"].mean()) == pytest.approx(float(fitted[1].float().mean() / 255), abs=1e-4)
    assert "no VAE" not in said


def test_every_picture_of_a_batch_is_a_reference(encode):
    conditioning, _, presentation, said = encode(vae=StandInVAE(), ref_images={"ref_image_0": picture(1, batch=3)})
    assert len(refs(conditioning)) == 3
    assert "<Picture 3>: " in presentation
    assert "Picture 3 = ref_image_0, 3 of 3: " in said


def test_text_encoder_only_reference_has_no_latent(encode):
    images = {"ref_image_0": {"image": picture(1)}, "ref_image_1": picture(2)}
    conditioning, _, presentation, said = encode(vae=StandInVAE(), ref_images=images)
    assert [block["picture_index"] for block in refs(conditioning)] == [1]
    assert "<Picture 2>: " in presentation
    assert "Picture 1 = ref_image_0: 128x96 as it is (match); vision only, no latent" in said


def test_video_with_soundtrack_and_sound_keep_the_hosts_order(encode):
    conditioning, _, text, said = encode(
        "a fox", vae=StandInVAE(), audio_vae=StandInAudioVAE(), width=256, height=192, length=39,
        ref_images={"ref_image_0": picture(1)}, ref_videos={"ref_video_0": clip_of()},
        ref_video_audios={"ref_video_audio_0": sound(1.0)}, ref_audios={"ref_audio_0": sound(2.0, rate=16000)},
    )  # fmt: skip
    blocks = refs(conditioning)
    assert [block["kind"] for block in blocks] == ["image", "video_audio", "audio"]
    assert {k: v for k, v in blocks[1].items() if not isinstance(v, torch.Tensor)} == {
        "kind": "video_audio", "latent_t": 12, "latent_h": 4, "latent_w": 6, "ref_audio_t": 40,
    }  # fmt: skip
    assert blocks[1]["audio_latent"].shape == (1, 32, 2, 40)
    assert set(blocks[2]) == {"kind", "ref_audio_t", "audio_latent"}
    assert blocks[2]["ref_audio_t"] == 80
    assert text.index("<Audio 1>: <Video 1>: <0.2 seconds>") < text.index("<Audio 2>: ")
    assert "Audio 1 = soundtrack of ref_video_0: 1.0 s, used whole; 80 tokens in every sampling step" in said
    assert (
        "Video 1 = ref_video_0: 39 frames (1.6 s) used of 48 at 24 fps (2.0 s); 96x64 as it is; "
        "72 tokens in every sampling step" in said
    )
    assert "Audio 2 = ref_audio_0: 2.0 s, used whole; 160 tokens in every sampling step" in said
    assert "videos by ComfyUI's rule: cut to the length asked for and to 17k + 5 frames, never enlarged" in said


def test_silent_video_has_no_audio_latent(encode):
    conditioning, *_ = encode(vae=StandInVAE(), ref_videos={"ref_video_0": clip_of()})
    (block,) = refs(conditioning)
    assert (block["kind"], block["ref_audio_t"], block["audio_latent"]) == ("video", 0, None)


def test_soundtrack_without_audio_vae_is_a_silent_block_with_a_label(encode):
    sockets = {"ref_videos": {"ref_video_0": clip_of()}, "ref_video_audios": {"ref_video_audio_0": sound()}}
    conditioning, _, text, said = encode(vae=StandInVAE(), **sockets)
    (block,) = refs(conditioning)
    assert (block["kind"], block["ref_audio_t"], block["audio_latent"]) == ("video", 0, None)
    assert "<Audio 1>: <Video 1>: " in text
    assert "no audio VAE: sounds condition the text only" in said


def test_chain_comes_after_the_sockets_in_its_own_order(encode):
    from h3te.nodes.chains import AudioItem, ImageItem, VideoItem

    chain = (AudioItem(sound()), VideoItem(clip_of(24), fps=12.0), ImageItem(picture(3), vision_only=True))
    conditioning, _, text, said = encode(
        vae=StandInVAE(), audio_vae=StandInAudioVAE(), references=chain, length=39,
        ref_images={"ref_image_0": picture(1)},
    )  # fmt: skip
    blocks = refs(conditioning)
    assert [block["kind"] for block in blocks] == ["image", "audio", "video"]
    assert blocks[2]["latent_t"] == 12  # 24 frames at 12 fps are 48 at 24 fps, cut to 39
    labels = [text.index(label) for label in ("<Picture 1>", "<Audio 1>", "<Video 1>", "<Picture 2>")]
    assert labels == sorted(labels)
    assert "39 frames (1.6 s) used of 24 at 12 fps (2.0 s)" in said


# refusals


def test_soundtrack_without_its_video_is_refused(encode):
    with pytest.raises(ValueError, match="ref_video_audio_1: expected a reference video on ref_video_1"):
        encode(ref_video_audios={"ref_video_audio_1": sound()})


def test_chain_of_something_else_is_refused(encode):
    with pytest.raises(ValueError, match=r"to be a chain of references, got a tuple of int\. Connect Ref"):
        encode(references=(1,))


def test_colour_that_is_none_is_refused_by_its_input(encode):
    with pytest.raises(ValueError, match=r"Encode Prompt \+ Reference Image \(H3TE\), alpha_colour: expected a colour"):
        encode(alpha_colour="no such colour")


def test_size_mode_that_is_none_is_refused(encode):
    told = r"^Encode .* \(H3TE\), ref_image_size: expected match or max or official or none, got {}\. Choose one"
    for mode in ("huge", None):
        for sockets in ({}, {"ref_images": {"ref_image_0": picture(1)}}, {"references": (1,)}):
            with pytest.raises(ValueError, match=told.format(repr(mode))):
                encode(ref_image_size=mode, **sockets)


@pytest.mark.parametrize("name", ["ref_image_x", "ref_image_", "ref_video_0", "0", "ref_image_-1"])
def test_socket_without_a_number_is_named(encode, name):
    for sockets in ({f"ref_images.{name}": picture(1)}, {"ref_images": {name: picture(1)}}):
        told = rf"^ref_images\.{name}: expected a socket named as ref_images\.ref_image_0 is, .* got '{name}'\. Correct"
        with pytest.raises(ValueError, match=told):
            encode(**sockets)


def test_error_of_a_list_says_which_prompt(encode):
    modes = ["match", "match", "huge"]
    with pytest.raises(ValueError, match=r"^prompt 3 of 3: Encode .*, ref_image_size: expected match or"):
        encode(ref_image_size=modes)
    with pytest.raises(
        ValueError, match=r"^prompt 2 of 2: MiniMax H3 CLIP: expected one string as the prompt, got int"
    ):
        encode(prompt=["a fox", 5], ref_images={"ref_image_0": picture(1)})


def test_other_clips_are_refused_by_name(encode):
    class Flux:
        tokenizer = None
        cond_stage_model = torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match="expected a MiniMax H3 text encoder on clip, got Linear"):
        encode(clip=Flux())


def test_own_h3_clip_of_the_host_is_called_by_its_two_methods_alone(encode):
    class HostClip:
        """Answers nothing but what ComfyUI's H3 CLIP is documented to answer."""

        class tokenizer:
            qwen3vl_32b = None

        def tokenize(self, text, **kwargs):
            return {"qwen3vl_32b": [[(text, sorted(kwargs))]]}

        def encode_from_tokens_scheduled(self, tokens):
            return [[torch.zeros(1, 1, 8), {"tokens": tokens}]]

    conditioning, _, text, said = encode("a fox", clip=HostClip(), ref_images={"ref_image_0": picture(1)})
    assert conditioning[0][1]["tokens"] == {"qwen3vl_32b": [[("a fox", ["minimax_ref_items"])]]}
    assert text == ""
    assert "ComfyUI's own H3 text encoder" in said
