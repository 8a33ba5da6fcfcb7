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
        (conditioning,), (latent,), (presentation,) = output.args
        return conditioning, latent["samples"], presentation, output.ui["text"][0]

    return run


@pytest.fixture
def encode_list(comfy, tiny_clip):  # noqa: F811
    """The node called as ComfyUI calls it, with lists: its outputs and the node text."""
    from h3te.nodes.encode_references import EncodeReferences

    def run(**inputs):
        output = EncodeReferences.execute(**{"clip": [tiny_clip], **{k: [v] for k, v in SIZE.items()}, **inputs})
        return output.args, output.ui["text"][0]

    return run


def clip_of(frames: int = LONG_ENOUGH, seed: int = 2, height: int = 64, width: int = 96) -> torch.Tensor:
    return picture(seed, height, width, batch=frames)


def refs(conditioning) -> list:
    return conditioning[0][1].get("minimax_refs", [])


def test_prompt_alone_equals_encoder_and_has_no_refs(encode, tiny_clip):  # noqa: F811
    ((cond, extras),), _, presentation, _ = encode("a fox")
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox").hidden.float())
    assert set(extras) == {"pooled_output", "minimax_token_tags"}
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


def test_without_vae_references_condition_the_text_and_the_node_says_so(encode):
    sockets = {"ref_images": {"ref_image_0": picture(1)}, "ref_audios": {"ref_audio_0": sound()}}
    conditioning, _, _, said = encode(**sockets)
    assert "minimax_refs" not in conditioning[0][1]
    assert said.splitlines()[:2] == [
        "no VAE: references condition the text only",
        "no audio VAE: sounds condition the text only",
    ]
    assert "Picture 1 = ref_image_0: 128x96 as it is (match); no latent" in said


def test_missing_vae_is_not_mentioned_for_what_is_vision_only_anyway(encode):
    from h3te.nodes.chains import AudioItem, ImageItem

    chain = (ImageItem(picture(1), vision_only=True), AudioItem(sound(), vision_only=True))
    assert "no VAE" not in encode(references=chain)[3]
    assert "no audio VAE" not in encode(references=chain)[3]


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


def test_soundtrack_is_used_whole_however_long_the_video_is(encode):
    for seconds in (0.5, 5.0):
        conditioning, _, _, said = encode(
            vae=StandInVAE(), audio_vae=StandInAudioVAE(), ref_videos={"ref_video_0": clip_of()},
            ref_video_audios={"ref_video_audio_0": sound(seconds)},
        )  # fmt: skip
        assert refs(conditioning)[0]["ref_audio_t"] == seconds * 40
        assert f"soundtrack of ref_video_0: {seconds} s, used whole" in said


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


@pytest.mark.parametrize(
    ("mode", "size", "said"),
    [
        ("match", (192, 256), "480x640 shrunk to 192x256 (match); 48 tokens"),
        ("max", (480, 640), "480x640 as it is (max); 300 tokens"),
        ("official", (2048, 2720), "480x640 enlarged to 2048x2720 (official); 5440 tokens"),
        ("none", (490, 650), "490x650 as it is (none); 300 tokens"),
    ],
)
def test_size_modes_of_reference_images(encode, tiny_clip, monkeypatch, mode, size, said):  # noqa: F811
    from h3te.nodes.host import any_clip

    asked = []

    def encode_all(asks, node):
        asked.extend(item["data"].shape for ask in asks for item in ask.references["minimax_ref_items"])
        return [any_clip.Encoded([[torch.zeros(1, 1, 8), {}]], "", [], "", []) for _ in asks]

    monkeypatch.setattr("h3te.nodes.encode_references.encode_all", encode_all)  # 2048x2720 takes long to encode
    image = picture(2, 650, 490) if mode == "none" else picture(2, 640, 480)
    conditioning, _, _, text = encode(vae=StandInVAE(), ref_image_size=mode, ref_images={"ref_image_0": image})
    assert asked == [(1, size[1], size[0], 3)]
    (block,) = refs(conditioning)
    assert block["latent"].shape[-2:] == (block["latent_h"], block["latent_w"])
    assert block["latent_h"] % 2 == block["latent_w"] % 2 == 0
    assert f"Picture 1 = ref_image_0: {said} in every sampling step" in text
    assert f"{block['latent_h'] * block['latent_w'] // 4} tokens in every" in text


def test_timed_picture_is_presented_with_its_second_and_the_node_says_so(encode):
    from h3te.nodes.reference_image import ReferenceImage

    (chain,) = ReferenceImage.execute(picture(1), vision_only=False, timed=True, second=2.0).args
    _, _, text, said = encode(references=chain)
    assert text.startswith("<Picture 1>: <2.0 seconds><|vision_start|>")
    assert "Picture 1 = Reference Image (H3TE) 1 of the chain: " in said
    assert "<2.0 seconds> (timed, which is no released form)" in said


def test_size_and_length_off_the_grid_are_snapped_and_said(encode):
    _, samples, _, said = encode(width=250, height=200, length=23)
    assert tuple(samples.tensors[0].shape) == (1, 24, 12, 12, 16)
    assert "size 250x200 became 256x192" in said
    assert "length 23 became 39" in said


def test_node_text_counts_tokens_in_all_and_per_part(encode):
    conditioning, _, _, text = encode("a fox", ref_images={"ref_image_0": picture(1)})
    assert f"{conditioning[0][0].shape[1]} tokens in all" in text
    assert "Picture 1: " in text
    assert "prompt: 2 tokens" in text
    assert "cpu, 0.01 GB resident, 0.00 GB offloaded" in text
    assert "memory plan: weights 0.01 GB, activations 0.00 GB; " in text
    assert " s, cache: none" in text


def test_node_text_is_sent_to_the_node_when_a_server_runs(encode, monkeypatch):
    import sys
    from types import SimpleNamespace

    from h3te.nodes.encode_references import EncodeReferences

    sent = []
    instance = SimpleNamespace(send_progress_text=lambda text, node: sent.append((node, text)))
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    monkeypatch.setattr(EncodeReferences, "hidden", SimpleNamespace(unique_id="7"))
    said = encode("a fox")[3]
    assert sent == [("7", said)]


def test_alpha_is_put_on_the_colour_and_said_once(encode):
    clear = torch.cat([picture(1), torch.zeros(1, 96, 128, 1)], dim=-1)
    images = {"ref_image_0": clear, "ref_image_1": clear}
    conditioning, _, _, said = encode(vae=StandInVAE(), alpha_colour="#336699", ref_images=images)
    colour = sum((0x33, 0x66, 0x99)) / 3 / 255
    assert [float(block["latent"].mean()) for block in refs(conditioning)] == pytest.approx([colour] * 2, abs=1e-6)
    assert said.count("#336699") == 1
    assert said.splitlines()[0].startswith("alpha of ref_image_0, ref_image_1")


# lists of prompts


def test_list_of_prompts_gives_a_list_of_everything(encode, encode_list):
    prompts = ["a fox", "a <Picture 1>", ""]
    images = {"ref_image_0": [picture(1)]}
    (positive, latents, shown), said = encode_list(prompt=prompts, vae=[StandInVAE()], ref_images=images)
    assert len(positive) == len(latents) == len(shown) == 3
    for prompt, conditioning, text in zip(prompts, positive, shown, strict=True):
        alone, _, alone_text, _ = encode(prompt, vae=StandInVAE(), ref_images={"ref_image_0": picture(1)})
        assert torch.equal(conditioning[0][0], alone[0][0])
        assert text == alone_text
        assert refs(conditioning)[0]["latent"] is refs(positive[0])[0]["latent"]  # encoded once
    assert said.startswith("3 prompts")
    assert said.count("Picture 1 = ref_image_0") == 1


def test_list_of_chains_gives_each_prompt_its_own(encode_list):
    from h3te.nodes.chains import ImageItem

    chains = [(ImageItem(picture(1)),), (ImageItem(picture(2)), ImageItem(picture(3)))]
    (positive, _, _), said = encode_list(prompt=["a fox"], vae=[StandInVAE()], references=chains)
    assert [len(refs(conditioning)) for conditioning in positive] == [1, 2]
    assert "2: Picture 2 = reference image" in said


def test_warnings_of_every_prompt_come_before_what_is_only_said(encode_list):
    lengths = [22, 23]
    _, said = encode_list(prompt=["a fox"], length=lengths, ref_images={"ref_image_0": [picture(1)]})
    lines = said.splitlines()
    assert lines[:3] == [
        "2 prompts",
        "no VAE: references condition the text only",
        "2: length 23 became 39: 17k + 5 frames",
    ]
    assert lines.count("no VAE: references condition the text only") == 1


def test_of_list_numbers_what_differs_and_says_the_rest_once(comfy):  # noqa: F811
    from h3te.nodes.host.report import of_list

    assert of_list([["a", "b"]], [["w"]]) == ["w", "a", "b"]
    assert of_list([["a"]]) == ["a"]
    assert of_list([["a", "b"], ["a", "c"]], [["w"], []]) == ["2 prompts", "1: w", "a", "1: b", "2: c"]


# refusals


def test_soundtrack_without_its_video_is_refused(encode):
    with pytest.raises(ValueError, match="ref_video_audio_1: expected a reference video on ref_video_1"):
        encode(ref_video_audios={"ref_video_audio_1": sound()})


def test_chain_of_something_else_is_refused(encode):
    with pytest.raises(ValueError, match="expected references to be a chain of ImageItem, VideoItem, AudioItem"):
        encode(references=(1,))


def test_colour_that_is_none_is_refused_by_its_input(encode):
    with pytest.raises(ValueError, match=r"Encode Prompt \+ Reference Image \(H3TE\), alpha_colour: expected a colour"):
        encode(alpha_colour="no such colour")


def test_size_mode_that_is_none_is_refused(encode):
    with pytest.raises(ValueError, match="expected a size mode of match, max, official, none, got 'huge'"):
        encode(ref_image_size="huge", ref_images={"ref_image_0": picture(1)})


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
