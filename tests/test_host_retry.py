"""The one retry when memory runs out: everything offloaded, each reference on its own, said; Stop never is mistaken."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import like_a_device, open_as, stored_as  # noqa: F401 (fixtures)

PICTURES = [{"type": "image", "data": picture(1, 64, 64)}, {"type": "image", "data": picture(2, 64, 96)}]


def tokens_of(clip, items=()):
    return clip.tokenize("a fox", minimax_ref_items=list(items))


def encode(clip, items=()) -> torch.Tensor:
    return clip.encode_from_tokens(tokens_of(clip, items))


@pytest.fixture
def runs_out(comfy, monkeypatch):  # noqa: F811
    """`with runs_out(times, error) as seen:` the first borrows raise; `seen`: bytes loaded at every borrow after."""
    from h3te.nodes.host.leaf import HostLeaf

    real = HostLeaf.borrow

    @contextmanager
    def planted(clip, times: int = 1, error: BaseException | None = None):
        failed, seen = [0], []

        @contextmanager
        def borrow(leaf, x):
            if leaf is clip.encoder.model.language_model.layers[2].mlp.up_proj and failed[0] < times:
                failed[0] += 1
                raise error or torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            if failed[0]:
                seen.append(clip.patcher.loaded_size())
            with real(leaf, x) as lent:
                yield lent

        with monkeypatch.context() as patch:
            patch.setattr(HostLeaf, "borrow", borrow)
            yield seen

    return planted


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot", "nvfp4_awq streamed"])
def test_out_of_memory_is_repeated_once_with_everything_offloaded(open_as, runs_out, caplog, kind):  # noqa: F811
    from h3te.nodes.host import any_clip

    clip = open_as(kind)
    expected, size = encode(clip, PICTURES), clip.patcher.model_size()
    presentation = tokens_of(clip, PICTURES)["qwen3vl_32b"].presentation
    apart = clip.encoder.encode_presentation(presentation, vision_packing="per_reference").hidden.float()
    with runs_out(clip) as seen:
        done = any_clip.encode_all([any_clip.Ask(clip, "a fox", {"minimax_ref_items": PICTURES})], "node")[0]
    assert torch.equal(done.conditioning[0][0], apart)
    assert seen
    assert set(seen) == {0}
    assert done.notes == [
        "ran out of memory, repeated with all weights offloaded and every reference seen on its own (vision_packing "
        "per_reference), which may differ in the last bits"
    ]
    assert done.notes[0] in caplog.text
    assert any(f"0.00 GB resident, {size / 1e9:.2f} GB offloaded" in line for line in done.details)
    again = any_clip.encode_all([any_clip.Ask(clip, "a fox", {"minimax_ref_items": PICTURES})], "node")[0]
    assert torch.equal(again.conditioning[0][0], expected)
    assert not again.notes
    assert clip.patcher.loaded_size() == clip.patcher.model_size() == size


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot", "nvfp4_awq", "bf16 streamed", "gguf"])
def test_out_of_memory_where_loading_moves_weights(open_as, like_a_device, runs_out, kind):  # noqa: F811
    clip = open_as(kind)
    expected = encode(clip)
    with runs_out(clip) as seen:
        assert torch.equal(encode(clip), expected)
    assert set(seen) == {0}
    assert torch.equal(encode(clip), expected)
    assert clip.patcher.loaded_size() == clip.patcher.model_size()


def test_second_try_sees_every_reference_on_its_own(tiny_clip, runs_out, monkeypatch):  # noqa: F811
    from h3te.encoder import model

    real, calls = model.VisionTower.see, []

    def see(self, given, *rest, **options):
        calls.append(len(given))
        return real(self, given, *rest, **options)

    monkeypatch.setattr(model.VisionTower, "see", see)
    with runs_out(tiny_clip):
        encode(tiny_clip, PICTURES)
    assert calls == [1, 2]


def test_text_alone_is_repeated_to_the_same_bits(tiny_clip, runs_out):  # noqa: F811
    expected = encode(tiny_clip)
    with runs_out(tiny_clip):
        assert torch.equal(encode(tiny_clip), expected)
    assert tiny_clip.run.repeated == "ran out of memory, repeated with all weights offloaded"


def test_second_out_of_memory_is_an_error_with_the_plan(tiny_clip, runs_out):  # noqa: F811
    expected = encode(tiny_clip, PICTURES)
    with runs_out(tiny_clip, times=2), pytest.raises(RuntimeError) as e:
        encode(tiny_clip, PICTURES)
    said = str(e.value)
    assert said.startswith(
        "MiniMax H3 CLIP: expected enough memory with all weights offloaded, got none again (CUDA out"
    )
    assert "memory plan: weights 0.0" in said
    assert "To make it fit, use smaller or fewer references" in said
    assert "choose reader stream" in said
    assert e.value.__context__ is None  # nothing holds the activations
    assert torch.equal(encode(tiny_clip, PICTURES), expected)
    assert tiny_clip.patcher.loaded_size() == tiny_clip.patcher.model_size()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB)"),
        torch.cuda.OutOfMemoryError("HIP out of memory."),
    ],
)
def test_every_kind_of_out_of_memory_is_known(tiny_clip, runs_out, error):  # noqa: F811
    expected = encode(tiny_clip)
    with runs_out(tiny_clip, error=error):
        assert torch.equal(encode(tiny_clip), expected)
    assert tiny_clip.run.repeated


def test_the_hosts_own_exception_is_known(comfy, tiny_clip, runs_out, monkeypatch):  # noqa: F811
    class Ours(Exception):
        pass

    expected = encode(tiny_clip)
    monkeypatch.setattr(comfy.model_management, "OOM_EXCEPTION", Ours)
    with runs_out(tiny_clip, error=Ours()):
        assert torch.equal(encode(tiny_clip), expected)


@pytest.mark.parametrize("kind", ["bf16", "int8_convrot"])
def test_out_of_memory_while_weights_are_loaded(comfy, open_as, monkeypatch, kind):  # noqa: F811
    clip, patcher = open_as(kind), None
    key = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
    file = {"x.lora_up.weight": torch.ones(64, 4) / 8, "x.lora_down.weight": torch.ones(4, 160) / 8}
    patcher = clip.patcher
    patcher.add_patches(comfy.lora.load_lora(file, {"x": key}), 0.5)
    expected, real = encode(clip), type(patcher).load

    def load(self, *args, lowvram_model_memory=0, **kwargs):
        if lowvram_model_memory > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, *args, lowvram_model_memory=lowvram_model_memory, **kwargs)

    comfy.model_management.unload_all_models()
    with monkeypatch.context() as patch:
        patch.setattr(type(patcher), "load", load)
        got = encode(clip)
    assert clip.run.repeated == "ran out of memory while weights were loaded, computed with all weights offloaded"
    assert clip.run.resident == 0
    assert torch.equal(got, expected) or kind == "bf16"  # where ComfyUI rounds a LoRA it wrote into a weight
    assert not torch.equal(got, encode(open_as(kind)))
    assert torch.equal(encode(clip), expected)
    assert clip.run.repeated is None


@pytest.mark.parametrize("error", [RuntimeError("shapes"), ValueError("out of memory"), KeyboardInterrupt()])
def test_other_errors_are_not_repeated(comfy, tiny_clip, runs_out, monkeypatch, error):  # noqa: F811
    monkeypatch.setattr(comfy.model_management, "OOM_EXCEPTION", Exception)  # where torch has no such class
    with runs_out(tiny_clip, error=error), pytest.raises(type(error)):
        encode(tiny_clip)
    assert tiny_clip.run is None


def test_stop_is_never_taken_for_out_of_memory(comfy, tiny_clip, runs_out, monkeypatch):  # noqa: F811
    from h3te.nodes.host.recovery import is_out_of_memory

    stop = comfy.model_management.InterruptProcessingException("out of memory")
    monkeypatch.setattr(comfy.model_management, "OOM_EXCEPTION", Exception)
    assert not is_out_of_memory(stop)
    with runs_out(tiny_clip, error=stop), pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(tiny_clip)
    assert tiny_clip.run is None


def test_stop_during_the_retry_gets_through(comfy, tiny_clip, runs_out, monkeypatch):  # noqa: F811
    from h3te.nodes.host import local_computing as module

    expected, real = encode(tiny_clip), module.offload

    def stopped(patcher):
        real(patcher)
        comfy.model_management.interrupt_current_processing(True)

    monkeypatch.setattr(module, "offload", stopped)
    with runs_out(tiny_clip), pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(tiny_clip)
    assert torch.equal(encode(tiny_clip), expected)


def test_activations_of_the_first_try_are_gone_before_the_second(comfy, tiny_clip, monkeypatch):  # noqa: F811
    from h3te.nodes.host import local_computing as module

    real, held, alive = module.LocalComputing._compute, [], []

    def compute(self, batches, vision_packing="official", cache=None):
        if vision_packing == "official":
            activation = torch.empty(10)
            held.append(weakref.ref(activation))
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        alive.append(held[0]() is not None)
        return real(self, batches, vision_packing, cache)

    monkeypatch.setattr(module.LocalComputing, "_compute", compute)
    gc.disable()
    try:
        encode(tiny_clip)
    finally:
        gc.enable()
    assert alive == [False]


def test_lora_stays_in_force_in_the_retry(comfy, open_as, runs_out):  # noqa: F811
    clip = open_as("int8_convrot")
    key = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
    generator = torch.Generator().manual_seed(3)
    up, down = (torch.randn(shape, generator=generator) for shape in ((64, 4), (4, 160)))
    file = {"x.lora_up.weight": up, "x.lora_down.weight": down}
    clip.patcher.add_patches(comfy.lora.load_lora(file, {"x": key}), 0.5)
    plain, expected = encode(open_as("int8_convrot")), encode(clip)
    assert not torch.equal(expected, plain)
    with runs_out(clip):
        assert torch.equal(encode(clip), expected)
    assert clip.run.repeated
    assert torch.equal(encode(clip), expected)


def test_hooks_stay_in_force_in_the_retry(comfy, tiny_clip, runs_out):  # noqa: F811
    hooks = comfy.hooks.HookGroup()
    hook = comfy.hooks.WeightHook(strength_clip=0.8)
    key = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
    generator = torch.Generator().manual_seed(3)
    up, down = (torch.randn(shape, generator=generator) for shape in ((64, 4), (4, 160)))
    hook.weights_clip = comfy.lora.load_lora({"x.lora_up.weight": up, "x.lora_down.weight": down}, {"x": key})
    hook.need_weight_init = False
    hooks.add(hook)
    plain, hooked = encode(tiny_clip), tiny_clip.clone()
    hooked.patcher.add_hook_patches(hook=hook, patches=hook.weights_clip, strength_patch=0.8)
    hooked.patcher.forced_hooks = hooks
    hooked.use_clip_schedule = True

    def scheduled() -> list[torch.Tensor]:
        return [cond for cond, _ in hooked.encode_from_tokens_scheduled(tokens_of(hooked))]

    expected = scheduled()
    assert not torch.equal(expected[0], plain)
    with runs_out(hooked):
        repeated = scheduled()
    assert hooked.run.repeated
    assert all(torch.equal(*pair) for pair in zip(repeated, expected, strict=True))
    assert torch.equal(encode(tiny_clip), plain)
