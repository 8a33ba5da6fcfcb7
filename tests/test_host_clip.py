"""The CLIP handle in ComfyUI's own nodes: both tokenize protocols, LoRA, hooks, clones, Stop, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import ImageReference, VideoReference
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)

PREFIX = "qwen3vl_32b.transformer."
LORA_KEY = "text_encoders." + PREFIX + "model.layers.0.self_attn.q_proj"


def lora(scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    up = torch.randn(512, 4, generator=generator) * scale
    return {f"{LORA_KEY}.lora_up.weight": up, f"{LORA_KEY}.lora_down.weight": torch.randn(4, 64, generator=generator)}


def hidden(clip, prompt: str = "a fox in the snow") -> torch.Tensor:
    return clip.encode_from_tokens_scheduled(clip.tokenize(prompt))[0][0]


# encoding


def test_clip_text_encode_equals_encoder_called_directly(comfy, tiny_clip):  # noqa: F811
    (conditioning,) = comfy.nodes.CLIPTextEncode().encode(tiny_clip, "a fox <d>hello</d>")
    direct = tiny_clip.encoder.encode("a fox <d>hello</d>")
    assert len(conditioning) == 1
    cond, extras = conditioning[0]
    assert torch.equal(cond, direct.hidden.float())
    assert extras["pooled_output"] is None
    assert torch.equal(extras["minimax_token_tags"], direct.token_tags)
    assert extras["minimax_token_tags"].dtype == torch.int64
    assert set(extras) == {"pooled_output", "minimax_token_tags"}
    assert cond.dtype == torch.float32
    assert cond.device == comfy.model_management.intermediate_device()


def test_empty_prompt_gives_one_text_token(comfy, tiny_clip):  # noqa: F811
    (conditioning,) = comfy.nodes.CLIPTextEncode().encode(tiny_clip, "")
    assert conditioning[0][0].shape == (1, 1, 64)
    assert conditioning[0][1]["minimax_token_tags"].tolist() == [1]


def test_images_protocol_equals_image_references(tiny_clip):  # noqa: F811
    images = [picture(1), picture(2, 64, 64)]
    cond, extras = tiny_clip.encode_from_tokens_scheduled(tiny_clip.tokenize("a fox", images=images))[0]
    direct = tiny_clip.encoder.encode("a fox", [ImageReference(image[0]) for image in images])
    assert torch.equal(cond, direct.hidden.float())
    assert torch.equal(extras["minimax_token_tags"], direct.token_tags)


def test_ref_items_protocol_keeps_request_order(tiny_clip):  # noqa: F811
    frames = picture(3, 64, 96, batch=3)
    items = [
        {"type": "audio"},
        {"type": "video", "data": frames, "timestamps": [0.0, 0.5, 1.0]},
        {"type": "image", "data": picture(4)},
    ]
    cond = tiny_clip.encode_from_tokens(tiny_clip.tokenize("a fox", minimax_ref_items=items))
    references = [
        VideoReference(frames, has_audio=True, timestamps=(0.0, 0.5, 1.0)),
        ImageReference(picture(4)[0]),
    ]
    assert torch.equal(cond, tiny_clip.encoder.encode("a fox", references).hidden.float())


def test_timed_image_is_stamped_and_read_as_the_encoder_reads_it(tiny_clip):  # noqa: F811
    items = [{"type": "image", "data": picture(4), "timestamp": 2.04}, {"type": "image", "data": picture(5)}]
    tokens = tiny_clip.tokenize("a fox", minimax_ref_items=items)
    batch = tokens["qwen3vl_32b"]
    assert [s.text for s in batch.presentation.segments if hasattr(s, "text")] == [
        "<Picture 1>: ", "<2.0 seconds>", "<Picture 2>: ", "a fox",
    ]  # fmt: skip
    references = [ImageReference(picture(4)[0], 2.04), ImageReference(picture(5)[0])]
    direct = tiny_clip.encoder.encode("a fox", references)
    assert torch.equal(tiny_clip.encode_from_tokens(tokens), direct.hidden.float())
    apart = [id_ for text in ("<Picture 1>: ", "<2.0 seconds>") for id_ in tiny_clip.tokenizer.encode(text)]
    assert batch.sequence.ids[: len(apart)].tolist() == apart  # each text tokenised on its own


def test_timestamp_that_is_no_time_is_refused(tiny_clip):  # noqa: F811
    items = [{"type": "image", "data": picture(4), "timestamp": -1}]
    with pytest.raises(ValueError, match=r"<Picture 1>: expected a timestamp .* from 0 on, got -1\. Correct it"):
        tiny_clip.tokenize("a fox", minimax_ref_items=items)


def test_video_without_timestamps_counts_two_per_second(tiny_clip):  # noqa: F811
    frames = picture(3, 64, 96, batch=2)
    given = tiny_clip.tokenize("", minimax_ref_items=[{"type": "video", "data": frames, "timestamps": [0.0, 0.5]}])
    counted = tiny_clip.tokenize("", minimax_ref_items=[{"type": "video", "data": frames}])
    assert given == counted


def test_one_sampled_frame_is_repeated_and_said(tiny_clip, caplog):  # noqa: F811
    caplog.set_level("INFO")
    items = [{"type": "video", "data": picture(3, 64, 96), "timestamps": [0.0]}]
    assert tiny_clip.encode_from_tokens(tiny_clip.tokenize("a fox", minimax_ref_items=items)).isfinite().all()
    assert "repeated" in caplog.text


def test_text_encoder_only_reference_is_unwrapped(tiny_clip):  # noqa: F811
    marked = tiny_clip.tokenize("a fox", minimax_ref_items=[{"type": "image", "data": {"image": picture(4)}}])
    assert marked == tiny_clip.tokenize("a fox", images=[picture(4)])


def test_alpha_is_composited_on_white_and_said(tiny_clip, caplog):  # noqa: F811
    caplog.set_level("INFO")
    rgba = picture(4, channels=4)
    flat = rgba[..., :3] * rgba[..., 3:] + (1 - rgba[..., 3:])
    seen = tiny_clip.tokenize("", images=[rgba])["qwen3vl_32b"].presentation.image.pixel_values
    assert torch.equal(seen, tiny_clip.tokenize("", images=[flat])["qwen3vl_32b"].presentation.image.pixel_values)
    assert "white" in caplog.text


def test_alpha_of_bytes_is_the_alpha_of_floats(tiny_clip):  # noqa: F811
    image = picture(5, channels=4)
    as_bytes = (image * 255).round().to(torch.uint8)
    floats, bytes_ = (tiny_clip.tokenize("a", images=[i])["qwen3vl_32b"].presentation for i in (image, as_bytes))
    assert torch.equal(floats.image.pixel_values, bytes_.image.pixel_values)


def test_tokens_read_like_those_of_other_clips(tiny_clip):  # noqa: F811
    tokens = tiny_clip.tokenize("a fox", return_word_ids=True)
    assert list(tokens) == ["qwen3vl_32b"]
    assert tokens["qwen3vl_32b"][0][0] == (64, 1.0, 0)
    assert tiny_clip.tokenize("a fox")["qwen3vl_32b"] == [[(64, 1.0), (38835, 1.0)]]


def test_return_shapes_of_encode_from_tokens(tiny_clip):  # noqa: F811
    tokens = tiny_clip.tokenize("a fox")
    bare = tiny_clip.encode_from_tokens(tokens)
    cond, pooled = tiny_clip.encode_from_tokens(tokens, return_pooled=True)
    named = tiny_clip.encode_from_tokens(tokens, return_pooled="unprojected", return_dict=True)
    assert pooled is None
    assert torch.equal(bare, cond)
    assert torch.equal(bare, named["cond"])
    assert torch.equal(bare, tiny_clip.encode("a fox"))


def test_add_dict_reaches_the_conditioning(tiny_clip):  # noqa: F811
    out = tiny_clip.encode_from_tokens_scheduled(tiny_clip.tokenize("a fox"), add_dict={"guidance": 3.5})
    assert out[0][1]["guidance"] == 3.5


# weights


def test_state_dict_has_the_names_of_the_hosts_own_encoder(tiny_clip):  # noqa: F811
    names = tiny_clip.cond_stage_model.state_dict().keys()
    assert PREFIX + "model.layers.4.mlp.down_proj.weight" in names
    assert PREFIX + "visual.blocks.0.attn.qkv.bias" in names
    assert not any("embed_tokens" in name or "language_model" in name for name in names)


def test_loading_reads_no_weights_before_first_use(tiny_clip):  # noqa: F811
    assert not tiny_clip.encoder.is_loaded
    tiny_clip.tokenize("a fox")
    assert not tiny_clip.encoder.is_loaded
    hidden(tiny_clip)
    assert tiny_clip.encoder.is_loaded


def test_lora_changes_the_output_and_the_original_stays(comfy, tiny_clip):  # noqa: F811
    plain = hidden(tiny_clip)
    _, patched = comfy.sd.load_lora_for_models(None, tiny_clip, lora(), 1.0, 1.0)
    assert not torch.equal(hidden(patched), plain)
    assert torch.equal(hidden(tiny_clip), plain)


def test_lora_and_first_use_inside_inference_mode_as_comfyui_runs_nodes(comfy, tiny_clip):  # noqa: F811
    with torch.inference_mode():
        plain = hidden(tiny_clip)
        _, patched = comfy.sd.load_lora_for_models(None, tiny_clip, lora(), 1.0, 1.0)
        changed = hidden(patched)
        assert torch.equal(hidden(tiny_clip), plain)
    assert torch.equal(hidden(patched), changed)
    assert torch.equal(hidden(tiny_clip), plain)


def test_answers_of_the_base_class_work(tiny_clip):  # noqa: F811
    tiny_clip.encode("a fox")
    weights = sum(w.nbytes for w in tiny_clip.cond_stage_model.parameters())
    if hasattr(tiny_clip, "get_ram_usage"):
        assert tiny_clip.get_ram_usage() == weights
    if hasattr(tiny_clip, "is_dynamic"):
        assert tiny_clip.is_dynamic() is False
    assert tiny_clip.patcher.model_size() == tiny_clip.patcher.loaded_size() == weights
    assert len(tiny_clip.patcher.get_key_patches()) == len(tiny_clip.cond_stage_model.state_dict())


def test_lora_of_zero_changes_nothing(comfy, tiny_clip):  # noqa: F811
    plain = hidden(tiny_clip)
    _, patched = comfy.sd.load_lora_for_models(None, tiny_clip, lora(0.0), 1.0, 1.0)
    assert torch.equal(hidden(patched), plain)


def test_lora_offloaded_is_close_to_lora_loaded(comfy, tiny_clip):  # noqa: F811
    _, patched = comfy.sd.load_lora_for_models(None, tiny_clip, lora(0.1), 1.0, 1.0)
    plain, loaded = hidden(tiny_clip), hidden(patched)
    patched.patcher.detach()
    patched.patcher.partially_load(torch.device("cpu"), 1)
    assert patched.patcher.lowvram_patch_counter() > 0
    done = patched.encoder.encode_presentation(patched.tokenize("a fox in the snow")["qwen3vl_32b"].presentation)
    patched.patcher.detach()
    change = (loaded - plain).norm()
    assert change > 0
    # the loaded path rounds the patched weight to bf16 stochastically, the casting path does not
    assert (done.hidden.float() - loaded).norm() < 0.2 * change


def test_lora_loader_reports_unknown_keys_and_loads_known_ones(comfy, tiny_clip):  # noqa: F811
    keys = comfy.lora.model_lora_keys_clip(tiny_clip.cond_stage_model, {})
    assert keys[LORA_KEY] == PREFIX + "model.layers.0.self_attn.q_proj.weight"


def test_clones_share_weights_and_keep_their_own_patches(tiny_clip):  # noqa: F811
    twin = tiny_clip.clone()
    assert type(twin) is type(tiny_clip)
    assert twin.encoder is tiny_clip.encoder
    assert twin.patcher.is_clone(tiny_clip.patcher)
    twin.add_patches({PREFIX + "model.layers.0.self_attn.q_proj.weight": ("diff", (torch.ones(512, 64),))})
    assert not tiny_clip.patcher.patches


def test_hooks_schedule_gives_one_entry_per_stretch(comfy, tiny_clip, tiny_checkpoint):  # noqa: F811
    files = {file: file.read_bytes() for file in tiny_checkpoint.glob("*.safetensors")}
    hooks = comfy.hooks.create_hook_lora(lora=lora(), strength_model=1.0, strength_clip=1.0)
    frames = comfy.hooks.HookKeyframeGroup()
    frames.add(comfy.hooks.HookKeyframe(strength=1.0, start_percent=0.0))
    frames.add(comfy.hooks.HookKeyframe(strength=0.0, start_percent=0.5))
    hooks.set_keyframes_on_hooks(frames)
    set_hooks = _node("nodes_hooks", "SetClipHooks")
    plain = hidden(tiny_clip)
    (hooked,) = set_hooks().apply_hooks(tiny_clip, schedule_clip=True, apply_to_conds=True, hooks=hooks)
    out = hooked.encode_from_tokens_scheduled(hooked.tokenize("a fox in the snow"))
    stretches = [(extras["clip_start_percent"], extras["clip_end_percent"]) for _, extras in out]
    assert stretches == [(0.0, 0.5), (0.5, 1.0)]
    assert all("minimax_token_tags" in extras and "hooks" in extras for _, extras in out)
    assert not torch.equal(out[0][0], plain)
    assert torch.equal(out[1][0], plain)
    late = hooked.encode_from_tokens_scheduled(hooked.tokenize("a fox"), add_dict={"start_percent": 0.6})
    assert len(late) == 1
    assert torch.equal(hidden(tiny_clip), plain)
    # hooks write into weights in place: into the mapping's private pages, never into the file
    assert all(file.read_bytes() == content for file, content in files.items())


def test_factory_of_the_patcher_makes_an_independent_copy(comfy, tiny_checkpoint, tokenizer_folder):  # noqa: F811
    from h3te.nodes.host import opening as module

    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="at least 50 decoder layers, got 6"):
        module.load_clip(tiny_checkpoint, cpu, cpu, torch.bfloat16)


# Stop


def test_stop_leaves_the_clip_usable(comfy, tiny_clip):  # noqa: F811
    plain = hidden(tiny_clip)
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        hidden(tiny_clip)
    assert torch.equal(hidden(tiny_clip), plain)


def test_progress_counts_every_layer_and_block(comfy, tiny_clip, monkeypatch):  # noqa: F811
    import comfy.utils

    seen = []
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, *_, **__: seen.append((value, total)))
    tiny_clip.encode_from_tokens(tiny_clip.tokenize("a fox", images=[picture(1)]))
    assert seen[0] == (1, 11)
    assert seen[-1] == (11, 11)


# what it refuses


def test_clip_set_last_layer_is_refused_by_name(comfy, tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match="CLIPSetLastLayer"):
        comfy.nodes.CLIPSetLastLayer().set_last_layer(tiny_clip, -2)
    tiny_clip.layer_idx = -2
    with pytest.raises(ValueError, match="layer -2 from CLIP Set Last Layer"):
        hidden(tiny_clip)


def test_text_generation_and_saving_are_refused_by_name(tiny_clip):  # noqa: F811
    with pytest.raises(RuntimeError, match="generate text"):
        tiny_clip.generate(tiny_clip.tokenize("a fox"))
    with pytest.raises(RuntimeError, match="generate text"):
        tiny_clip.decode([1])
    with pytest.raises(RuntimeError, match="CLIPSave"):
        tiny_clip.get_sd()
    with pytest.raises(RuntimeError, match="CLIPSave"):
        tiny_clip.state_dict_for_saving()


@pytest.mark.parametrize(
    "name,values", [("CLIPMergeSimple", [0.5]), ("CLIPMergeAdd", []), ("CLIPMergeSubtract", [1.0])]
)
def test_merging_is_refused_by_name(comfy, tiny_clip, name, values):  # noqa: F811
    node = _node("nodes_model_merging", "NODE_CLASS_MAPPINGS")[name]
    with pytest.raises(RuntimeError, match=r"merge the weights .*remove that node"):
        getattr(node(), node.FUNCTION)(tiny_clip, tiny_clip, *values)


@pytest.mark.parametrize("prompt", [None, 5, ["a fox"], b"a fox"])
def test_prompt_that_is_no_text_is_refused(comfy, tiny_clip, prompt):  # noqa: F811
    with pytest.raises(ValueError, match=f"one string as the prompt, got {type(prompt).__name__}"):
        comfy.nodes.CLIPTextEncode().encode(tiny_clip, prompt)


def test_tokens_of_another_clip_are_refused(tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match=r"own tokenize\(\), got keys \['l'\]"):
        tiny_clip.encode_from_tokens({"l": [[(1, 1.0)]]})
    with pytest.raises(ValueError, match="got list"):
        tiny_clip.encode_from_tokens([1])


def test_edited_tokens_are_refused(tiny_clip):  # noqa: F811
    tokens = tiny_clip.tokenize("a fox")
    tokens["qwen3vl_32b"][0][0] = (64, 1.2)
    with pytest.raises(ValueError, match="edited ids or weights"):
        tiny_clip.encode_from_tokens(tokens)


def test_unknown_item_type_is_refused(tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match=r"minimax_ref_items\[0\].*got 'smell'"):
        tiny_clip.tokenize("a fox", minimax_ref_items=[{"type": "smell"}])


def test_unknown_arguments_are_named_in_the_log(tiny_clip, caplog):  # noqa: F811
    tiny_clip.tokenize("a fox", llama_template="x")
    assert "llama_template" in caplog.text
    tiny_clip.tokenize("embedding:style of a fox")
    assert "textual inversions" in caplog.text
    tiny_clip.set_tokenizer_option("t5_min_length", 3)
    assert "t5_min_length" in caplog.text


def test_wrong_image_is_refused_by_its_place(tiny_clip):  # noqa: F811
    with pytest.raises(ValueError, match=r"images\[0\]: expected an IMAGE .* got shape \[1, 8, 8, 5\]"):
        tiny_clip.tokenize("a fox", images=[torch.rand(1, 8, 8, 5)])
    with pytest.raises(ValueError, match=r"images\[0\]: expected an IMAGE .* got NoneType"):
        tiny_clip.tokenize("a fox", images=[None])


def _node(module: str, name: str):
    import importlib

    return getattr(importlib.import_module(f"comfy_extras.{module}"), name)
