"""How long weights live and who shares them: loaders of one file, eviction and back, unload after encode, clones."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import weakref
from pathlib import Path

import pytest
import torch
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import like_a_device, open_as, stored_as  # noqa: F401 (fixtures)
from h3te_tests.tiny_weights import TAP_LAYER
from safetensors.torch import load_file, save_file

PICTURES = [{"type": "image", "data": picture(1, 64, 64)}]
KEY = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
SLACK = 16 << 20  # bytes: what Python and malloc may keep between two requests


def encode(clip) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox", minimax_ref_items=PICTURES))


def add_lora(comfy, clip) -> None:  # noqa: F811
    file = {"x.lora_up.weight": torch.ones(64, 4) / 8, "x.lora_down.weight": torch.ones(4, 160) / 8}
    clip.patcher.add_patches(comfy.lora.load_lora(file, {"x": KEY}), 0.5)


@pytest.fixture
def open_clip(comfy, monkeypatch, tokenizer_folder, tiny_checkpoint, tmp_path):  # noqa: F811
    """`load_clip` for tiny checkpoints; the default one is a copy in tmp_path / "encoder"."""
    from h3te.nodes.host import opening

    real = opening.load_encoder

    def load_encoder(path, **options):
        return real(path, tap_layer=TAP_LAYER, **options)

    monkeypatch.setattr(opening, "load_encoder", load_encoder)
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "encoder"))

    def open_it(path=folder, dtype=torch.bfloat16, **options):
        return opening.load_clip(path, CPU, CPU, dtype, **options)

    open_it.folder = folder
    return open_it


def replace_layer(folder: Path) -> None:
    """Another checkpoint under the same names, sizes and times."""
    file = next(f for f in sorted(folder.glob("*.safetensors")) if any(".layers.1." in n for n in load_file(f)))
    stat, weights = file.stat(), load_file(file)
    changed = {n: (w * 1.5 if ".layers.1.mlp.down" in n else w) for n, w in weights.items()}
    save_file(changed, folder / "new", metadata={"format": "pt"})
    os.utime(folder / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (folder / "new").replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text()


# sharing


def test_two_loaders_of_one_file_share_one_set_of_weights(comfy, open_clip):  # noqa: F811
    first, second = open_clip(), open_clip()
    assert first.encoder is second.encoder
    assert first.patcher is not second.patcher
    plain = encode(first)
    add_lora(comfy, second)
    assert not torch.equal(encode(second), plain)
    assert torch.equal(encode(first), plain)
    assert not first.patcher.patches
    third = open_clip()
    assert not third.patcher.patches
    assert torch.equal(encode(third), plain)


@pytest.mark.parametrize("other", [{"dtype": torch.float32}, {"reader": "read"}, {"unpack": "torch"}])
def test_other_settings_do_not_share(open_clip, other):
    assert open_clip(**other).encoder is not open_clip().encoder


def test_backend_and_unload_are_the_handles_own(open_clip):
    plain, releasing = open_clip(), open_clip(unload=True)
    assert plain.encoder is releasing.encoder
    expected = encode(plain)
    assert torch.equal(encode(releasing), expected)
    assert not plain.encoder.is_loaded
    assert torch.equal(encode(plain), expected)
    assert plain.encoder.is_loaded
    assert releasing.clone().unload


def test_a_replaced_file_is_another_one(open_clip):
    before = open_clip()
    plain = encode(before)
    replace_layer(open_clip.folder)
    after = open_clip()
    assert after.encoder is not before.encoder
    assert not torch.equal(encode(after), plain)
    assert torch.equal(encode(before), plain)  # mapped: the old file lives as long as this does


def test_nobody_left_is_nothing_left(comfy, open_clip):  # noqa: F811
    first, second = open_clip(), open_clip()
    encode(first)
    encode(second.clone())
    tree = weakref.ref(first.patcher.model)
    del first
    gc.collect()
    assert tree() is not None
    del second
    gc.collect()
    comfy.model_management.cleanup_models_gc()
    assert tree() is None
    if sys.platform == "linux":
        assert not mapped(open_clip.folder)


def test_clones_outlive_their_parent(open_clip):
    clip = open_clip()
    expected, twin = encode(clip), clip.clone().clone()
    del clip
    gc.collect()
    assert torch.equal(encode(twin), expected)


# eviction


def test_evicted_and_back(comfy, open_as):  # noqa: F811
    for kind in ("bf16", "int8_convrot", "nvfp4_awq streamed"):
        clip = open_as(kind)
        expected = encode(clip)
        comfy.model_management.unload_all_models()
        assert clip.patcher.loaded_size() == 0
        assert not [m for m in comfy.model_management.current_loaded_models if m.model is clip.patcher]
        assert torch.equal(encode(clip), expected)
        comfy.model_management.free_memory(1e30, CPU)
        assert torch.equal(encode(clip), expected)
        assert clip.patcher.loaded_size() == clip.patcher.model_size()


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot", "gguf streamed"])
def test_evicted_and_given_up_where_loading_moves_weights(comfy, open_as, like_a_device, kind):  # noqa: F811
    clip = open_as(kind)
    expected = encode(clip)
    for _ in range(2):
        comfy.model_management.unload_all_models()
        assert torch.equal(encode(clip), expected)
        clip.unload = True
        assert torch.equal(encode(clip), expected)
        assert all(parameter.is_meta for parameter in clip.cond_stage_model.parameters())
        clip.unload = False


def test_evicted_in_part_by_another_model_and_back(comfy, tiny_clip, monkeypatch):  # noqa: F811
    management = comfy.model_management
    expected, size = encode(tiny_clip), tiny_clip.patcher.model_size()
    sampler = comfy.model_patcher.ModelPatcher(torch.nn.Linear(64, 64), CPU, CPU)
    with monkeypatch.context() as patch:
        patch.setattr(management, "get_free_memory", lambda *a, **k: (1000, 1000) if k.get("torch_free_too") else 1000)
        management.free_memory(1000 + size // 3, CPU)
    assert 0 < tiny_clip.patcher.loaded_size() < size
    management.load_models_gpu([sampler])
    assert torch.equal(encode(tiny_clip), expected)
    assert tiny_clip.patcher.loaded_size() == size
    assert sampler.loaded_size() > 0


# unload after encode


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot", "nvfp4_awq streamed", "gguf"])
def test_unload_after_encode_gives_everything_up_and_encodes_again(comfy, open_as, stored_as, kind):  # noqa: F811
    expected = encode(open_as(kind))
    clip = open_as(kind)
    clip.unload = True
    gc.collect()
    for _ in range(3):
        assert torch.equal(encode(clip), expected)
        assert not clip.encoder.is_loaded
        assert all(parameter.is_meta for parameter in clip.cond_stage_model.parameters())
        assert clip.patcher.loaded_size() == 0
        assert not [m for m in comfy.model_management.current_loaded_models if m.model is clip.patcher]
        assert clip.run.released
    clip.unload = False
    assert torch.equal(encode(clip), expected)


def test_unload_after_encode_closes_the_mapping(open_clip):
    clip = open_clip(unload=True)
    plain = open_clip()
    encode(plain)
    if sys.platform == "linux":
        assert mapped(open_clip.folder)
    encode(clip)
    gc.collect()
    if sys.platform == "linux":
        assert not mapped(open_clip.folder)


def test_unload_after_encode_undoes_a_lora(comfy, open_as):  # noqa: F811
    for kind in ("bf16", "int8_convrot"):
        clip = open_as(kind)
        plain, patched = encode(clip), clip.clone()
        add_lora(comfy, patched)
        expected = encode(patched)
        patched.unload = True
        for _ in range(2):
            assert torch.equal(encode(patched), expected)
            assert torch.equal(encode(clip), plain)


def test_unload_after_a_failure_and_after_stop(comfy, open_as, monkeypatch):  # noqa: F811
    clip = open_as("bf16")
    expected = encode(clip)
    clip.unload = True
    tokens = clip.tokenize("a fox", minimax_ref_items=PICTURES)  # before Stop: preparation heeds it too
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        clip.encode_from_tokens(tokens)
    assert not clip.encoder.is_loaded
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(type(clip.encoder), "encode_presentations", lambda *a, **k: {}["x"])
        encode(clip)
    assert not clip.encoder.is_loaded
    assert torch.equal(encode(clip), expected)


def test_weights_given_by_hand_are_kept(tiny_clip, monkeypatch):  # noqa: F811
    expected = encode(tiny_clip)
    tiny_clip.unload = True
    monkeypatch.setattr(tiny_clip.encoder, "source", None)
    assert torch.equal(encode(tiny_clip), expected)
    assert tiny_clip.encoder.is_loaded


def test_unload_is_said_on_the_node(open_clip):
    from h3te.nodes.host import any_clip

    done = any_clip.encode_all([any_clip.Ask(open_clip(unload=True), "a fox", {})], "node")[0]
    assert "cpu, weights unloaded after the encode, as the options say" in done.details


# memory of later requests


def live_bytes() -> int:
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.layout == torch.strided and not thing.is_meta:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot", "bf16 streamed"])
@pytest.mark.parametrize("unload", [False, True])
def test_later_requests_hold_no_more_than_the_first(open_as, kind, unload):  # noqa: F811
    clip = open_as(kind)
    clip.unload = unload
    held = []
    for _ in range(3):
        encode(clip)
        held.append(live_bytes())
    assert held[0] == held[1] == held[2]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the resident size")
def test_peak_of_later_requests_is_that_of_the_first(tiny_clip):  # noqa: F811
    large = [{"type": "image", "data": picture(1, 512, 512)}]
    peaks, after = [], []
    for _ in range(4):
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        except OSError:
            pytest.skip("the peak of this process cannot be reset")
        tiny_clip.encode_from_tokens(tiny_clip.tokenize("a fox", minimax_ref_items=large))
        peaks.append(peak_resident())
        after.append(resident())
    assert max(peaks[1:]) <= peaks[0] + SLACK
    assert max(after[1:]) <= after[0] + SLACK


# what newer ComfyUI asks of cached outputs and models


def test_copies_for_other_devices_take_the_hosts_keyword(open_clip):
    clip = open_clip()
    factory, arguments = clip.patcher.cached_patcher_init
    copy = factory(*arguments, disable_dynamic=True)
    assert copy.model.encoder is not clip.encoder
    assert not getattr(copy, "is_dynamic", lambda: False)()
    assert torch.equal(encode(type(clip)(copy)), encode(clip))
    assert torch.equal(encode(clip.clone(disable_dynamic=True)), encode(clip))


def test_independent_copies_do_not_share(comfy, open_clip):  # noqa: F811
    clip = open_clip()
    if not hasattr(clip.patcher, "deepclone_multigpu"):
        pytest.skip("this ComfyUI makes no copies for other devices")
    expected = encode(clip)
    add_lora(comfy, clip)
    twin = clip.clone()
    twin.patcher = twin.patcher.deepclone_multigpu(new_load_device=CPU)
    assert twin.encoder is not clip.encoder
    assert torch.equal(encode(twin), encode(clip))
    assert torch.equal(encode(open_clip()), expected)


def test_cached_output_is_known_as_a_model(comfy, open_clip):  # noqa: F811
    clip = open_clip()
    if not hasattr(comfy.model_patcher, "is_model_patcher_output"):
        pytest.skip("this ComfyUI does not ask")
    assert comfy.model_patcher.is_model_patcher_output(clip)
    assert not clip.is_dynamic()
    tracker = comfy.model_patcher.PromptModelTracker()
    tracker.add([clip, {"nested": [clip]}])
    tracker.end()
