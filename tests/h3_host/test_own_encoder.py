"""The host's own H3 text encoder beside ours: names, keys, dtypes and devices agree, and our nodes take it."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import StandInAudioVAE, StandInVAE, picture, sound

SIZE = {"width": 256, "height": 192, "length": 39}


def test_weight_names_are_the_hosts(own_clip, tiny_clip):
    kept = ("qwen3vl_32b.transformer.model.layers.", "qwen3vl_32b.transformer.visual.")
    theirs = {name for name in own_clip.cond_stage_model.state_dict() if name.startswith(kept)}
    assert set(tiny_clip.cond_stage_model.state_dict()) == theirs


def test_lora_keys_are_the_hosts(comfy, own_clip, tiny_clip):
    ours = comfy.lora.model_lora_keys_clip(tiny_clip.cond_stage_model, {})
    theirs = comfy.lora.model_lora_keys_clip(own_clip.cond_stage_model, {})
    assert ours.items() <= theirs.items()


@pytest.mark.parametrize("images", [0, 2])
def test_conditioning_has_the_hosts_keys_dtype_and_device(own_clip, tiny_clip, images):
    pictures = [picture(i, 256, 320) for i in range(images)]
    out = [c.encode_from_tokens_scheduled(c.tokenize("a fox", images=pictures))[0] for c in (own_clip, tiny_clip)]
    (theirs, their_extras), (ours, our_extras) = out
    assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
    assert set(our_extras) == set(their_extras)
    assert our_extras["pooled_output"] is their_extras["pooled_output"] is None
    assert torch.equal(our_extras["minimax_token_tags"], their_extras["minimax_token_tags"])
    assert our_extras["minimax_token_tags"].dtype == their_extras["minimax_token_tags"].dtype
    # bfloat16 against the host's float32 on the same weights: noise, not another computation
    assert (ours - theirs).norm() / theirs.norm() < 0.1


def test_our_nodes_take_the_hosts_own_clip(own_clip):
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.encode_references import EncodeReferences

    output = EncodeKeyframes.execute(own_clip, "a fox", vae=StandInVAE(), **SIZE, first_frame=picture(1))
    assert output.args[0][0][0].isfinite().all()
    output = EncodeReferences.execute(own_clip, "a fox", **SIZE, ref_images={"ref_image_0": picture(1)})
    assert output.args[0][0][0].isfinite().all()
    assert "ComfyUI's own H3 text encoder" in output.ui["text"][0]


def same(ours, theirs, path="") -> None:
    """Keys, types, shapes and plain values agree; `picture_index` is allowed on top, as newer hosts have it."""
    if isinstance(theirs, torch.Tensor):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), path
    elif isinstance(theirs, dict):
        assert set(ours) - {"picture_index"} == set(theirs) - {"picture_index"}, path
        for key in theirs:
            same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), path
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            same(a, b, f"{path}[{i}]")
    else:
        assert ours == theirs, path


def test_keyframe_conditioning_has_the_shapes_of_the_hosts_node(h3, tiny_clip):
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    frames = {"first_frame": picture(1, 192, 256), "last_frame": picture(2, 192, 256)}
    theirs = h3.MiniMaxH3ImageToVideo.execute(tiny_clip, StandInVAE(), "a fox", **SIZE, **frames)
    ours = EncodeKeyframes.execute(tiny_clip, "a fox", vae=StandInVAE(), **SIZE, **frames)
    same(ours.args[0], theirs.args[0])
    assert torch.equal(ours.args[0][0][0], theirs.args[0][0][0])  # the pictures have the canvas' size already
    same(ours.args[1]["samples"].tensors, theirs.args[1]["samples"].tensors)


def test_reference_conditioning_has_the_shapes_of_the_hosts_node(h3, tiny_clip):
    from h3te.nodes.encode_references import EncodeReferences

    request = {
        "vae": StandInVAE(), "audio_vae": StandInAudioVAE(), "prompt": "a fox", **SIZE,
        "ref_images": {"ref_image_0": picture(1, 160, 128), "ref_image_1": picture(2, 700, 300)},
        "ref_videos": {"ref_video_0": picture(3, 96, 128, batch=30), "ref_video_1": picture(4, 64, 64, batch=50)},
        "ref_video_audios": {"ref_video_audio_1": sound(1.0)}, "ref_audios": {"ref_audio_0": sound(2.0)},
    }  # fmt: skip
    theirs = h3.MiniMaxH3ReferenceToVideo.execute(clip=tiny_clip, **request)
    ours = EncodeReferences.execute(clip=tiny_clip, **request)
    same(ours.args[0], theirs.args[0])
    same(ours.args[1]["samples"].tensors, theirs.args[1]["samples"].tensors)
