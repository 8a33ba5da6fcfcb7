"""What Encode Prompt + Reference Image says on the node: warnings, what became of each reference, what it costs."""

from __future__ import annotations

import re

import pytest
import torch
from h3te_tests.comfy_host import StandInAudioVAE, StandInVAE, comfy, picture, sound, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.page import as_plain_text
from h3te_tests.test_encode_references import clip_of, encode, refs  # noqa: F401 (fixture)


def test_without_vae_references_condition_the_text_and_the_node_says_so(encode):  # noqa: F811
    sockets = {"ref_images": {"ref_image_0": picture(1)}, "ref_audios": {"ref_audio_0": sound()}}
    conditioning, _, _, said = encode(**sockets)
    assert "minimax_refs" not in conditioning[0][1]
    assert said.splitlines()[:2] == [
        "no VAE: references condition the text only",
        "no audio VAE: sounds condition the text only",
    ]
    assert "Picture 1 = ref_image_0: 128x96 as it is (match); no latent" in said


def test_missing_vae_is_not_mentioned_for_what_is_vision_only_anyway(encode):  # noqa: F811
    from h3te.nodes.chains import AudioItem, ImageItem

    chain = (ImageItem(picture(1), vision_only=True), AudioItem(sound(), vision_only=True))
    assert "no VAE" not in encode(references=chain)[3]
    assert "no audio VAE" not in encode(references=chain)[3]


def test_soundtrack_is_used_whole_however_long_the_video_is(encode):  # noqa: F811
    for seconds in (0.5, 5.0):
        conditioning, _, _, said = encode(
            vae=StandInVAE(), audio_vae=StandInAudioVAE(), ref_videos={"ref_video_0": clip_of()},
            ref_video_audios={"ref_video_audio_0": sound(seconds)},
        )  # fmt: skip
        assert refs(conditioning)[0]["ref_audio_t"] == seconds * 40
        assert f"soundtrack of ref_video_0: {seconds} s, used whole" in said


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

    monkeypatch.setattr("h3te.nodes.encode_list.encode_all", encode_all)  # 2048x2720 takes long to encode
    image = picture(2, 650, 490) if mode == "none" else picture(2, 640, 480)
    conditioning, _, _, text = encode(vae=StandInVAE(), ref_image_size=mode, ref_images={"ref_image_0": image})
    assert asked == [(1, size[1], size[0], 3)]
    (block,) = refs(conditioning)
    assert block["latent"].shape[-2:] == (block["latent_h"], block["latent_w"])
    assert block["latent_h"] % 2 == block["latent_w"] % 2 == 0
    assert f"Picture 1 = ref_image_0: {said} in every sampling step" in text
    assert f"{block['latent_h'] * block['latent_w'] // 4} tokens in every" in text


def test_timed_picture_is_presented_with_its_second_and_the_node_says_so(encode):  # noqa: F811
    from h3te.nodes.reference_image import ReferenceImage

    (chain,) = ReferenceImage.execute(picture(1), vision_only=False, timed=True, second=2.0).args
    _, _, text, said = encode(references=chain)
    assert text.startswith("<Picture 1>: <2.0 seconds><|vision_start|>")
    assert "Picture 1 = Reference Image (H3TE) 1 of the chain: " in said
    assert "<2.0 seconds> (timed, which is no released form)" in said


def test_size_and_length_off_the_grid_are_snapped_and_said(encode):  # noqa: F811
    _, samples, _, said = encode(width=250, height=200, length=23)
    assert tuple(samples.tensors[0].shape) == (1, 24, 12, 12, 16)
    assert "size 250x200 became 256x192" in said
    assert "length 23 became 39" in said


def test_node_text_counts_tokens_in_all_and_per_part(encode):  # noqa: F811
    conditioning, _, _, text = encode("a fox", ref_images={"ref_image_0": picture(1)})
    assert f"{conditioning[0][0].shape[1]} tokens in all" in text
    assert "Picture 1: " in text
    assert "prompt: 2 tokens" in text
    assert "cpu, 0.01 GB resident, 0.00 GB offloaded" in text
    assert re.search(r"memory plan: weights 0\.01 GB, activations 0\.0\d GB; ", text)
    assert " s, cache: none" in text


def test_node_text_is_sent_to_the_node_when_a_server_runs(encode, monkeypatch):  # noqa: F811
    import sys
    from types import SimpleNamespace

    from h3te.nodes.encode_references import EncodeReferences

    sent = []
    instance = SimpleNamespace(send_progress_text=lambda text, node: sent.append((node, text)))
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    monkeypatch.setattr(EncodeReferences, "hidden", SimpleNamespace(unique_id="7"))
    said = encode("a fox of <Picture 4> & a <b>hen</b>", ref_images={"ref_image_0": picture(1)})[3]
    assert "<Picture 4>" in said
    assert [node for node, _ in sent] == ["7", "7"]
    assert "<b>" not in sent[1][1]  # the frontend sets it as HTML
    assert as_plain_text(sent[1][1]) == said


def test_sizes_and_their_cost_are_sent_before_the_encode(encode, monkeypatch):  # noqa: F811
    from h3te.nodes.host import any_clip, report

    order = []
    monkeypatch.setattr(report, "show", lambda node_id, lines: order.append("\n".join(lines)) or {"text": ("",)})
    encoded = any_clip.Encoded([[torch.zeros(1, 1, 8), {}]], "", [], "summary", [])
    monkeypatch.setattr("h3te.nodes.encode_list.encode_all", lambda asks, node: order.append("encode") or [encoded])
    encode(ref_images={"ref_image_0": picture(1, 640, 480)})
    before, encoding, after = order
    assert encoding == "encode"
    assert "480x640 shrunk to 192x256 (match)" in before
    assert "no VAE: references condition the text only" in before
    assert "summary" in after


def test_alpha_is_put_on_the_colour_and_said_once(encode):  # noqa: F811
    clear = torch.cat([picture(1), torch.zeros(1, 96, 128, 1)], dim=-1)
    images = {"ref_image_0": clear, "ref_image_1": clear}
    conditioning, _, _, said = encode(vae=StandInVAE(), alpha_colour="#336699", ref_images=images)
    colour = sum((0x33, 0x66, 0x99)) / 3 / 255
    assert [float(block["latent"].mean()) for block in refs(conditioning)] == pytest.approx([colour] * 2, abs=1e-6)
    assert said.count("#336699") == 1
    assert said.splitlines()[0].startswith("alpha of ref_image_0, ref_image_1")
