"""The caches of ComfyUI's CLIP when something is in the way: Stop, memory, disks, patches that are code, options."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from h3te_tests.cache_host import LONG, NAME, encode, load, user  # noqa: F401 (fixtures)
from h3te_tests.comfy_host import comfy, picture  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, text_encoders  # noqa: F401 (fixtures)

SHOWN = picture(1, 256, 256), picture(2, 256, 320)
WEIGHT = "qwen3vl_32b.transformer.model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def caches(comfy):  # noqa: F811
    from h3te.nodes.host import caches

    return caches


def forget(caches) -> None:
    """As another process: what is in memory alone is gone."""
    caches._store_in.cache_clear()
    caches.prefix_store.cache_clear()


def lora(comfy, clip, strength: float = 0.5):  # noqa: F811
    rows, columns = clip.patcher.model.state_dict()[WEIGHT].shape
    parts = {"x.lora_up.weight": torch.ones(rows, 1), "x.lora_down.weight": torch.ones(1, columns)}
    patched = clip.clone()
    patched.add_patches(comfy.lora.load_lora(parts, {"x": WEIGHT}), strength)
    return patched, weakref.ref(parts["x.lora_up.weight"])


# cache only


@pytest.mark.parametrize("kept", ["ram", "off", "ram and disk"])
def test_cache_only_reads_the_disk_whatever_the_options_keep(load, caches, kept):  # noqa: F811
    from h3te.nodes.host import cache_only, paths

    first = encode(load(conditioning_cache="ram and disk").args[0], "a fox", *SHOWN, expect="miss")
    forget(caches)
    _, choice = cache_only.choices()
    output = load(paths.CACHE_ONLY, cache_only=choice, conditioning_cache=kept)
    assert "GB of conditioning in " in output.ui["text"][0]
    assert torch.equal(first, encode(output.args[0], "a fox", *SHOWN, expect="hit (disk)"))
    assert torch.equal(first, encode(output.args[0], "a fox", *SHOWN, expect="hit (RAM)"))


@pytest.mark.parametrize("options", [{}, {"exact": True}], ids=["default", "exact"])
def test_cache_only_answers_with_the_lora_that_was_stored_and_with_none_other(load, caches, comfy, options):  # noqa: F811
    from h3te.nodes.host import cache_only, paths

    options = {"conditioning_cache": "ram and disk", **options}
    patched, _ = lora(comfy, load(**options).args[0])
    first = encode(patched, "a fox", SHOWN[0], expect="miss")
    forget(caches)
    _, choice = cache_only.choices()
    assert "with LoRA" in choice and ("official" in choice) == bool(options.get("exact"))
    clip = load(paths.CACHE_ONLY, cache_only=choice).args[0]
    assert torch.equal(first, encode(clip, "a fox", SHOWN[0], expect="hit (disk)"))
    assert torch.equal(first, encode(lora(comfy, clip)[0], "a fox", SHOWN[0], expect="hit (RAM)"))
    with pytest.raises(RuntimeError, match="expected a prompt with pictures that was encoded before"):
        encode(lora(comfy, clip, 0.25)[0], "a fox", SHOWN[0], expect="miss")


def test_cache_only_knows_an_encoder_whose_file_was_renamed(load, text_encoders):  # noqa: F811
    from h3te.nodes.host import cache_only, paths

    first = encode(load(conditioning_cache="ram and disk").args[0], "a fox", expect="miss")
    _, choice = cache_only.choices()
    (text_encoders / NAME).rename(text_encoders / "renamed.safetensors")
    encode(load("renamed.safetensors", conditioning_cache="ram and disk").args[0], "a wolf", expect="miss")
    _, now = cache_only.choices()
    assert now.startswith("renamed.safetensors") and now != choice
    clip = load(paths.CACHE_ONLY, cache_only=choice).args[0]
    assert torch.equal(first, encode(clip, "a fox", expect="hit (RAM)"))
    with pytest.raises(ValueError, match="expected an encoder that conditioning was stored of"):
        load(paths.CACHE_ONLY, cache_only=choice.replace(choice[-9:], "00000000)"))


# what is kept where


def test_conditioning_kept_in_memory_alone_goes_to_disk_when_that_is_chosen(load, caches, user):  # noqa: F811
    first = encode(load().args[0], "a fox", expect="miss")
    assert not user.is_dir() or not list(user.rglob("*.safetensors"))
    encode(load(conditioning_cache="ram and disk").args[0], "a fox", expect="hit (RAM)")
    forget(caches)
    again = load(conditioning_cache="ram and disk").args[0]
    assert torch.equal(first, encode(again, "a fox", expect="hit (disk)"))


def test_prefixes_without_room_for_any_are_still_references_seen_one_by_one(load, monkeypatch):  # noqa: F811
    """As the key of what is stored says."""
    clip = load(prefix_cache_gb=1e-12).args[0]
    real, seen = clip.encoder.encode_presentations, []

    def spied(*arguments, **options):
        seen.append(options["vision_packing"])
        return real(*arguments, **options)

    monkeypatch.setattr(clip.encoder, "encode_presentations", spied)
    encode(clip, "a fox", *SHOWN, expect="miss")
    assert seen == ["per_reference"]


def test_prompt_too_long_for_an_entrys_facts_is_stored_with_its_beginning(load, monkeypatch):  # noqa: F811
    monkeypatch.setattr("h3te.encoder.cache.entry_file.MAX_HEADER_BYTES", 8000)
    monkeypatch.setattr("h3te.nodes.host.request_cache.MOST_TEXT", 300)
    clip = load().args[0]
    first = encode(clip, LONG * 20, expect="miss")
    assert torch.equal(first, encode(clip, LONG * 20, expect="hit (RAM)"))


def test_folder_that_cannot_be_written_leaves_conditioning_in_memory(load, caches, user, comfy, monkeypatch, caplog):  # noqa: F811
    barred = user / "no folder"
    barred.write_text("a file")
    monkeypatch.setattr(comfy.folder_paths, "get_user_directory", lambda: str(barred))
    clip = load(conditioning_cache="ram and disk").args[0]
    first = encode(clip, "a fox", expect="miss")
    assert torch.equal(first, encode(clip, "a fox", expect="hit (RAM)"))
    assert caplog.text.count("expected to write into") == 1
    assert barred.read_text() == "a file"


def test_user_directory_of_any_script_holds_what_was_stored(load, caches, user, comfy, monkeypatch):  # noqa: F811
    folder = user / "Ünï 文件夹 \U0001f98a"
    monkeypatch.setattr(comfy.folder_paths, "get_user_directory", lambda: str(folder))
    first = encode(load(conditioning_cache="ram and disk").args[0], "a fox", expect="miss")
    forget(caches)
    again = load(conditioning_cache="ram and disk").args[0]
    assert torch.equal(first, encode(again, "a fox", expect="hit (disk)"))


def test_entry_damaged_on_disk_is_encoded_again_and_replaced(load, caches, user):  # noqa: F811
    clip = load(conditioning_cache="ram and disk").args[0]
    first = encode(clip, LONG, expect="miss")
    (file,) = user.rglob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    forget(caches)
    file.write_bytes(data)
    assert torch.equal(first, encode(clip, LONG, expect="miss"))
    forget(caches)
    assert torch.equal(first, encode(clip, LONG, expect="hit (disk)"))


# in the middle of an encode


@pytest.mark.parametrize("last", [3, 40])
def test_stop_in_the_middle_keeps_nothing_of_any_prompt(load, caches, comfy, monkeypatch, last):  # noqa: F811
    from h3te.nodes.host import local_computing as module

    clip, real = load().args[0], module.HostProgress
    calls = []

    class Stopping(real):
        def __call__(self, *step):
            calls.append(step)
            if len(calls) == last:
                raise comfy.model_management.InterruptProcessingException()
            super().__call__(*step)

    monkeypatch.setattr(module, "HostProgress", Stopping)
    tokens = clip.tokenize_each(["a fox", LONG], images=[SHOWN[0]])
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        clip.encode_each(tokens)
    assert len(calls) == last
    assert [batch.status for each in tokens for batch in each.values()] == [None, None]
    assert caches.prefix_store().nbytes == caches.conditioning_store().ram_bytes == 0
    encode(clip, "a fox", SHOWN[0], expect="miss")


def test_what_was_computed_after_memory_ran_out_is_not_stored(load, caches, monkeypatch):  # noqa: F811
    """It was computed in another order than its key would say."""
    clip = load(exact=True).args[0]
    real, tried = clip.encoder.encode_presentations, []

    def short_once(*arguments, **options):
        tried.append(options["vision_packing"])
        if len(tried) == 1:
            raise MemoryError("out of memory")
        return real(*arguments, **options)

    monkeypatch.setattr(clip.encoder, "encode_presentations", short_once)
    encode(clip, "a fox", *SHOWN, expect="none")
    assert tried == ["official", "per_reference"]
    assert caches.prefix_store().nbytes == caches.conditioning_store().ram_bytes == 0
    encode(clip, "a fox", *SHOWN, expect="miss")
    encode(clip, "a fox", *SHOWN, expect="hit (RAM)")


def test_prefixes_make_room_in_the_memory_that_ran_out(load, caches, monkeypatch):  # noqa: F811
    clip = load().args[0]
    encode(clip, LONG, SHOWN[0], expect="miss")
    real, held = clip.encoder.encode_presentations, []

    def short_once(*arguments, **options):
        held.append(caches.prefix_store().nbytes)
        if len(held) == 1:
            raise MemoryError("out of memory")
        return real(*arguments, **options)

    monkeypatch.setattr(clip.encoder, "encode_presentations", short_once)
    encode(clip, "a fox", SHOWN[0], expect="none")
    assert held[0] > 0 == held[1]


# patches


@pytest.mark.parametrize("kind", ["weight_wrapper_patches", "injections", "object_patches"])
def test_patches_that_are_code_go_past_the_caches(load, kind):  # noqa: F811
    from h3te.nodes.host.lora_digest import lora_digest

    clip = load().args[0]
    assert lora_digest(clip.patcher) == ""
    getattr(clip.patcher, kind)["anything"] = [lambda weight: weight]
    assert lora_digest(clip.patcher) is None
    assert lora_digest(load().args[0].patcher) == ""


def test_lora_is_not_held_in_memory_by_what_is_known_of_it(load, comfy):  # noqa: F811
    from h3te.nodes.host.lora_digest import lora_digest

    patched, held = lora(comfy, load().args[0])
    known = lora_digest(patched.patcher)
    assert len(known) == 64 and known == lora_digest(patched.clone().patcher)
    assert held() is not None
    del patched
    gc.collect()
    assert held() is None


def test_node_text_tells_each_prompt_of_a_list_its_own_status(load):  # noqa: F811
    from h3te.nodes.encode_references import EncodeReferences

    clip = load().args[0]
    inputs = {"width": [256], "height": [256], "length": [5], "ref_images": {"ref_image_0": [SHOWN[0]]}}
    EncodeReferences.execute(clip=[clip], prompt=["a fox"], **inputs)
    text = EncodeReferences.execute(clip=[clip], prompt=["a wolf", "a fox", "a hare"], **inputs).ui["text"][0]
    assert re.findall(r"s for 3 prompts in one pass, cache: (\w+)", text) == ["prefix", "hit", "prefix"]
    assert text.count("answered from the cache: no weight was read") == 1
