"""Nothing is encoded twice in ComfyUI: finished conditioning, prefixes, cache only; right answers under change."""

from __future__ import annotations

import shutil

import pytest
import torch
from h3te_tests.cache_host import LONG, NAME, encode, load, user  # noqa: F401 (fixtures)
from h3te_tests.comfy_host import comfy, picture  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, text_encoders  # noqa: F401 (fixtures)


def test_same_request_is_answered_from_memory_to_the_bit_without_weights(load):  # noqa: F811
    clip = load().args[0]
    first = encode(clip, "a fox", picture(1), expect="miss")
    again = load().args[0]
    again.encoder.materialise = lambda *_: pytest.fail("a hit must not touch the weights")
    second = encode(again, "a fox", picture(1), expect="hit (RAM)")
    assert torch.equal(first, second)
    second.fill_(0)  # what is handed out is the caller's own
    assert torch.equal(first, encode(again, "a fox", picture(1), expect="hit (RAM)"))


def test_new_prompt_behind_the_same_picture_reuses_the_tokens_before_it(load):  # noqa: F811
    clip = load(dtype="float32").args[0]
    encode(clip, LONG + "one", picture(1, 512, 512), expect="miss")
    reused = encode(clip, "Another prompt", picture(1, 512, 512), expect="prefix 264 of 266 tokens")
    fresh = load(dtype="float32", exact=True, conditioning_cache="off").args[0]
    assert torch.allclose(reused, encode(fresh, "Another prompt", picture(1, 512, 512), expect="miss"), atol=1e-5)


def test_pictures_in_another_order_are_not_seen_again(load):  # noqa: F811
    clip, one, two = load().args[0], picture(1, 256, 256), picture(2, 256, 320)
    encode(clip, "a fox", one, two, expect="miss")
    encode(clip, "a fox", two, one, expect="2 pictures seen before")


def test_exact_computes_every_prompt_whole_and_as_released(load, demo_file, tokenizer_folder):  # noqa: F811
    from h3te.encoder import ImageReference, load_encoder

    clip, seen = load(exact=True).args[0], [picture(1, 256, 256), picture(2, 256, 320)]
    encode(clip, LONG + "one", *seen, expect="miss")
    whole = encode(clip, LONG + "two", *seen, expect="miss")
    references = [ImageReference(pixels[0]) for pixels in seen]
    encoder = load_encoder(demo_file, tokenizer=tokenizer_folder)
    assert torch.equal(whole, encoder.encode(LONG + "two", references).hidden.float())


def test_caches_that_are_off_keep_nothing(load):  # noqa: F811
    from h3te.nodes.host import caches

    clip = load(prefix_cache_gb=0, conditioning_cache="off").args[0]
    encode(clip, LONG, expect="miss")
    encode(clip, LONG, expect="miss")
    assert caches.prefix_store().nbytes == caches.conditioning_store().ram_bytes == caches.clear("all") == 0


def test_disk_answers_in_another_process_and_after_the_memory_was_cleared(load, user):  # noqa: F811
    from h3te.nodes.host import caches

    first = encode(load(conditioning_cache="ram and disk").args[0], "a fox", expect="miss")
    assert caches.clear("conditioning in RAM") > 0
    assert caches.clear("prefixes") > 0
    encode(load().args[0], "a fox", expect="miss")  # the disk is asked only by who chose it
    caches.clear("conditioning in RAM")
    output = load(conditioning_cache="ram and disk")
    assert torch.equal(first, encode(output.args[0], "a fox", expect="hit (disk)"))
    assert "GB on disk in " + str(user) in output.ui["text"][0]
    assert caches.clear("conditioning on disk") > 0
    assert not list(user.rglob("*.safetensors"))


def test_another_dtype_picture_order_or_size_is_another_request(load):  # noqa: F811
    one, two = picture(1), picture(2)
    clip = load().args[0]
    encode(clip, "a fox", one, two, expect="miss")
    encode(load(dtype="float32").args[0], "a fox", one, two, expect="miss")
    encode(clip, "a fox", one, picture(2, 96, 160), expect="prefix 85 of 165 tokens")
    encode(clip, "a fox", one, two, expect="hit (RAM)")


def test_checkpoint_of_the_same_name_with_other_weights_is_another_encoder(load, text_encoders):  # noqa: F811
    encode(load().args[0], "a fox", expect="miss")
    path = text_encoders / NAME
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    path.unlink()
    with copy.open("r+b") as file:  # the last bytes of a tensor
        file.seek(-2, 2)
        last = file.read(2)
        file.seek(-2, 2)
        file.write(bytes([last[0] ^ 1, last[1]]))
    copy.rename(path)
    encode(load().args[0], "a fox", expect="miss")


def test_checkpoint_renamed_after_an_encode_still_answers_and_a_new_prompt_is_one_clear_error(load, text_encoders):  # noqa: F811
    clip = load(unload_after_encode=True).args[0]
    first = encode(clip, "a fox", expect="miss")
    path = text_encoders / NAME
    path.rename(path.with_name("renamed.safetensors"))
    assert torch.equal(first, encode(clip, "a fox", expect="hit (RAM)"))
    with pytest.raises(RuntimeError, match=r"h3\.safetensors: expected the file as it was .* got none"):
        encode(clip, "a wolf", expect="miss")
    moved = load("renamed.safetensors").args[0]
    assert torch.equal(first, encode(moved, "a fox", expect="hit (RAM)"))  # wherever the same weights lie


def test_lora_of_another_strength_is_another_request_and_the_same_one_is_known_again(load, comfy):  # noqa: F811
    name = "qwen3vl_32b.transformer.model.layers.0.mlp.down_proj.weight"

    def with_lora(strength: float):
        clip = load().args[0].clone()
        rows, columns = clip.patcher.model.state_dict()[name].shape
        torch.manual_seed(5)
        lora = {"x.lora_up.weight": torch.randn(rows, 2), "x.lora_down.weight": torch.randn(2, columns)}
        clip.add_patches(comfy.lora.load_lora(lora, {"x": name}), strength)
        return clip

    plain = encode(load().args[0], LONG, expect="miss")
    half = encode(with_lora(0.5), LONG, expect="miss")
    assert not torch.equal(plain, half)
    assert not torch.equal(half, encode(with_lora(0.25), LONG, expect="miss"))
    assert torch.equal(half, encode(with_lora(0.5), LONG, expect="hit (RAM)"))
    assert torch.equal(plain, encode(load().args[0], LONG, expect="hit (RAM)"))


def test_prompts_of_one_call_are_answered_and_encoded_together(load):  # noqa: F811
    clip = load().args[0]
    first = encode(clip, "a fox", picture(1), expect="miss")
    tokens = clip.tokenize_each(["a wolf", "a fox", "a hare"], images=[picture(1)])
    done = [entry[0][0] for entry in clip.encode_each(tokens)]
    said = [next(iter(each.values())).status.text() for each in tokens]
    assert said[1] == "hit (RAM)"
    assert torch.equal(done[1], first)
    assert not any("hit" in each for each in (said[0], said[2]))
    assert all(torch.isfinite(each).all() for each in done)


def test_cache_only_answers_without_a_checkpoint_and_lists_what_it_has(load, text_encoders):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.host import cache_only, paths
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    assert cache_only.choices() == ["off"]
    first = encode(load(conditioning_cache="ram and disk").args[0], "a fox", picture(1), expect="miss")
    (text_encoders / NAME).unlink()
    _, choice = cache_only.choices()
    assert choice.startswith("h3.safetensors, bfloat16 (")
    schema = {i.id: i for i in LoadTextEncoder.define_schema().inputs}
    assert paths.CACHE_ONLY in schema["text_encoder"].options
    assert choice in {i.id: i for i in EncoderOptionsNode.define_schema().inputs}["cache_only"].options
    assert LoadTextEncoder.validate_inputs(paths.CACHE_ONLY) is True
    output = load(paths.CACHE_ONLY, cache_only=choice)
    assert "no checkpoint is opened" in output.ui["text"][0]
    clip = output.args[0]
    assert torch.equal(first, encode(clip, "a fox", picture(1), expect="hit (RAM)"))
    with pytest.raises(RuntimeError, match=r'got one that was not: "a wolf" \(.* Stored are 1: "a fox" \(.* tokens\)'):
        encode(clip, "a wolf", expect="miss")


def test_cache_only_refuses_what_was_never_stored(load):  # noqa: F811
    from h3te.nodes.host import paths

    with pytest.raises(ValueError, match="expected an encoder that conditioning was stored of, got 'mine'"):
        load(cache_only="mine")
    with pytest.raises(ValueError, match="expected cache_only of the options to name an encoder, got off"):
        load(paths.CACHE_ONLY)


def test_hooks_that_swap_weights_go_past_the_caches(load, comfy):  # noqa: F811
    from h3te.nodes.host.lora_digest import lora_digest

    clip = load().args[0]
    assert lora_digest(clip.patcher) == ""
    clip.patcher.forced_hooks = comfy.hooks.HookGroup()
    encode(clip, "a fox", expect="none")
    encode(clip, "a fox", expect="none")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prefix_cache_gb", -2, "expected prefix_cache_gb in GB"),
        ("prefix_cache_gb", -0.5, "expected prefix_cache_gb in GB"),
        ("prefix_cache_gb", float("nan"), "expected prefix_cache_gb in GB"),
        ("disk_cache_gb", -1, "expected disk_cache_gb in GB"),
        ("disk_cache_gb", "4", "expected disk_cache_gb in GB"),
        ("conditioning_cache", "everywhere", "expected conditioning_cache to be one of ram, ram and disk, off"),
        ("exact", "yes", "expected exact to be true or false"),
        ("cache_only", None, "expected cache_only as a name"),
    ],
)
def test_cache_options_that_are_wrong_are_refused_by_name(comfy, name, value, message):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions

    with pytest.raises(ValueError, match=message):
        EncoderOptions(**{name: value})
