"""CLIPLoader replaced by our loader: each of the host's own H3 nodes runs, and gets what the encoder gives directly."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te_tests.comfy_host import StandInAudioVAE, StandInVAE, picture, sound
from h3te_tests.demo_host import demo_folder  # noqa: F401 (fixture)

SIZE = {"width": 256, "height": 192, "length": 39}


class Spied:
    """Our CLIP, remembering what it was asked to tokenize and the ids it gave."""

    def __init__(self, clip):
        self.clip, self.requests, self.ids = clip, [], []

    def __getattr__(self, name):
        return getattr(self.clip, name)

    def tokenize(self, text, **kwargs):
        self.requests.append((text, kwargs))
        tokens = self.clip.tokenize(text, **kwargs)
        self.ids.append(tokens["qwen3vl_32b"].sequence.ids)
        return tokens


def check(conditioning, direct, spied=None) -> dict:
    """Hidden states, tags and ids are the encoder's own; returns the other entries."""
    ((cond, extras),) = conditioning
    assert torch.equal(cond, direct.hidden.float())
    assert torch.equal(extras["minimax_token_tags"], direct.token_tags)
    assert len(direct.token_ids) == cond.shape[1]
    assert spied is None or torch.equal(spied.ids[-1], direct.token_ids)
    return {k: v for k, v in extras.items() if k not in ("pooled_output", "minimax_token_tags")}


def references(request) -> list:
    _, kwargs = request
    found = [ImageReference(image[0]) for image in kwargs.get("images", [])]
    for item in kwargs.get("minimax_ref_items", []):
        if item["type"] == "image":
            found.append(ImageReference(item["data"][0]))
        elif item["type"] == "video":
            found.append(VideoReference(item["data"], timestamps=tuple(item["timestamps"])))
        else:
            found.append(AudioReference())
    return found


@pytest.mark.parametrize("given", [(), ("first_frame",), ("last_frame",), ("first_frame", "last_frame")])
def test_image_to_video(h3, tiny_clip, given):
    clip = Spied(tiny_clip)
    frames = {name: picture(i, 160, 128) for i, name in enumerate(given)}
    output = h3.MiniMaxH3ImageToVideo.execute(clip, StandInVAE(), "a fox <d>hi</d>", **SIZE, **frames)
    (request,) = clip.requests
    assert len(request[1]["images"]) == len(given)
    extras = check(output.args[0], tiny_clip.encoder.encode(request[0], references(request)), clip)
    assert len(extras.get("minimax_keyframes", ())) == len(given)


def reference_output(h3, clip):
    return h3.MiniMaxH3ReferenceToVideo.execute(
        clip=clip, vae=StandInVAE(), audio_vae=StandInAudioVAE(), prompt="a fox <Picture 1>", **SIZE,
        ref_images={"ref_image_0": picture(1, 160, 128)}, ref_videos={"ref_video_0": picture(2, 96, 128, batch=30)},
        ref_video_audios={"ref_video_audio_0": sound(1.0)}, ref_audios={"ref_audio_0": sound(2.0)},
    )  # fmt: skip


def test_reference_to_video_with_image_video_soundtrack_and_audio(h3, tiny_clip):
    clip = Spied(tiny_clip)
    output = reference_output(h3, clip)
    (request,) = clip.requests
    assert [item["type"] for item in request[1]["minimax_ref_items"]] == ["image", "audio", "video", "audio"]
    extras = check(output.args[0], tiny_clip.encoder.encode(request[0], references(request)), clip)
    assert [block["kind"] for block in extras["minimax_refs"]] == ["image", "video_audio", "audio"]


def test_short_reference_video_has_one_sample_and_runs(h3, tiny_clip):
    clip = Spied(tiny_clip)
    output = h3.MiniMaxH3ReferenceToVideo.execute(
        clip=clip, vae=StandInVAE(), audio_vae=StandInAudioVAE(), prompt="", **SIZE,
        ref_videos={"ref_video_0": picture(2, 96, 128, batch=7)},
    )  # fmt: skip
    (request,) = clip.requests
    assert len(request[1]["minimax_ref_items"][0]["data"]) == 1
    check(output.args[0], tiny_clip.encoder.encode(request[0], references(request)), clip)


def test_add_guide_follows_the_hosts_node_and_ours(h3, tiny_clip):
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    theirs = h3.MiniMaxH3ImageToVideo.execute(tiny_clip, StandInVAE(), "", **SIZE, first_frame=picture(1))
    ours = EncodeKeyframes.execute(clip=tiny_clip, prompt="", vae=StandInVAE(), **SIZE, first_frame=picture(1))
    for positive, latent in (theirs.args[:2], (ours.args[0][0], ours.args[1][0])):
        guided = h3.MiniMaxH3AddGuide.execute(
            positive, latent, 8, vae=StandInVAE(), audio_vae=StandInAudioVAE(), image=picture(2), audio=sound(0.5)
        ).args[0]
        keyframes = guided[0][1]["minimax_keyframes"]
        assert [keyframe["resolved_frame_index"] for keyframe in keyframes] == [0, 8]
        assert torch.equal(guided[0][0], positive[0][0])


def test_clip_text_encode_with_empty_prompt(comfy, h3, tiny_clip):
    (conditioning,) = comfy.nodes.CLIPTextEncode().encode(tiny_clip, "")
    assert check(conditioning, tiny_clip.encoder.encode("")) == {}


def test_lora_loader_before_the_hosts_node(comfy, h3, tiny_clip, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    key = "text_encoders.qwen3vl_32b.transformer.model.layers.0.mlp.up_proj"
    up, down = torch.ones(160, 2), torch.ones(2, 64) / 8
    save_file({f"{key}.lora_up.weight": up, f"{key}.lora_down.weight": down}, tmp_path / "h3.safetensors")
    monkeypatch.setitem(comfy.folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], {".safetensors"}))
    monkeypatch.setattr(comfy.folder_paths, "filename_list_cache", {})
    plain = h3.MiniMaxH3ImageToVideo.execute(tiny_clip, StandInVAE(), "a fox", **SIZE).args[0]
    model, patched = comfy.nodes.LoraLoader().load_lora(None, tiny_clip, "h3.safetensors", 1.0, 1.0)
    changed = h3.MiniMaxH3ImageToVideo.execute(patched, StandInVAE(), "a fox", **SIZE).args[0]
    assert model is None
    assert not torch.equal(changed[0][0], plain[0][0])


def test_clip_set_last_layer_is_refused_by_name(comfy, h3, tiny_clip):
    with pytest.raises(ValueError, match="CLIPSetLastLayer"):
        comfy.nodes.CLIPSetLastLayer().set_last_layer(tiny_clip, -2)


def test_select_clip_device_keeps_the_clip_working(comfy, h3, tiny_clip):
    multigpu = pytest.importorskip("comfy_extras.nodes_multigpu")
    plain = tiny_clip.encode("a fox")
    for choice in ("cpu", "default"):
        (selected,) = multigpu.SelectCLIPDeviceNode.execute(tiny_clip, choice).args
        assert type(selected) is type(tiny_clip)
        assert torch.equal(selected.encode("a fox"), plain)


def test_text_encoder_only_reference_of_newer_hosts(h3, tiny_clip):
    if not hasattr(h3, "MiniMaxH3TextEncoderOnlyReference"):
        pytest.skip("this ComfyUI has no text-encoder-only reference")
    from h3te.nodes.encode_references import EncodeReferences

    marked = h3.MiniMaxH3TextEncoderOnlyReference.execute(picture(1)).args[0]
    output = EncodeReferences.execute(
        clip=tiny_clip, prompt="", vae=StandInVAE(), **SIZE, ref_images={"ref_image_0": marked}
    )
    assert "minimax_refs" not in output.args[0][0][0][1]


def test_device_selectors_get_an_independent_copy(h3, comfy, demo_folder):  # noqa: F811
    from h3te.nodes.host.opening import load_clip

    cpu = torch.device("cpu")
    clip = load_clip(demo_folder, cpu, cpu, torch.bfloat16)
    if not hasattr(clip.patcher, "deepclone_multigpu"):
        pytest.skip("this ComfyUI has no device selectors")
    twin = clip.clone()
    twin.patcher = twin.patcher.deepclone_multigpu(new_load_device=cpu)
    assert twin.encoder is not clip.encoder
    assert torch.equal(twin.encode("a fox"), clip.encode("a fox"))
