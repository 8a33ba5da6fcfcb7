"""The host's own H3 text encoder beside ours: names, keys, dtypes and devices agree, and our nodes take it."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, picture

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

    request = {"clip": own_clip, "prompt": "a fox", **SIZE}
    output = EncodeKeyframes.execute(**request, vae=StandInVAE(), first_frame=picture(1))
    assert output.args[0][0][0][0].isfinite().all()
    output = EncodeReferences.execute(**request, ref_images={"ref_image_0": picture(1)})
    assert output.args[0][0][0][0].isfinite().all()
    assert "ComfyUI's own H3 text encoder" in output.ui["text"][0]
