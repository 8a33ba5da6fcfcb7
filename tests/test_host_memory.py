"""Memory of a request before it is loaded: the plan on the node and in the log, warnings, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import like_a_device, open_as, stored_as  # noqa: F401 (fixtures)

PICTURES = [{"type": "image", "data": picture(1, 64, 64)}, {"type": "image", "data": picture(2, 64, 96)}]
GB = 10**9


def tokens_of(clip, items=()):
    return clip.tokenize("a fox", minimax_ref_items=list(items))


def encode(clip, items=()) -> torch.Tensor:
    return clip.encode_from_tokens(tokens_of(clip, items))


def budget(**changes):
    from h3te.nodes.host.budget import Budget
    from h3te.nodes.host.memory import MemoryPlan

    known = {
        "plan": MemoryPlan(3000, (5000, 0), 3 * GB, GB), "device": torch.device("cuda:0"), "weights": 15 * GB,
        "layer": GB // 2, "free": 10 * GB, "available": 12 * GB, "limit": 16 * GB, "packed": False,
    }  # fmt: skip
    return Budget(**{**known, **changes})


def test_plan_says_weights_activations_free_and_what_will_be_offloaded(comfy, monkeypatch):  # noqa: F811
    monkeypatch.setattr(comfy.model_management, "extra_reserved_memory", lambda: 0.5 * GB)
    line = budget().line()
    assert line == (
        "memory plan: weights 15.00 GB, activations 3.00 GB; 10.00 GB free on cuda:0 (and 2.00 GB in other models); "
        "about 6.50 GB of the weights will be offloaded"
    )
    assert budget(weights=2 * GB, available=10 * GB).line().endswith("10.00 GB free on cuda:0; all weights fit")
    assert (
        budget(device=CPU, available=10 * GB).line().endswith("10.00 GB of RAM free; weights are used where they rest")
    )


def test_short_memory_is_a_warning_that_says_what_would_help(comfy):  # noqa: F811
    assert budget().warning() is None
    assert budget(available=2 * GB).warning() == (
        "memory is short: 2.00 GB of activations and 0.50 GB for a layer, 2.00 GB available. If it fails: use smaller "
        "or fewer references (ref_image_size match), or load a packed file (nvfp4_awq or int8_convrot), or choose "
        "device cpu in the loader"
    )
    budget(available=2 * GB).check()


def test_advice_fits_the_request(comfy):  # noqa: F811
    text = replace(budget().plan, patches=(0, 0))
    assert budget(plan=text, packed=True).advice() == "shorten the prompt, or choose device cpu in the loader"
    assert (
        budget(plan=replace(text, tokens=9), packed=True, device=CPU).advice() == "choose reader stream in the options"
    )


def test_refused_is_only_what_the_whole_device_cannot_hold(comfy):  # noqa: F811
    budget(limit=1.6 * GB).check()  # a plan may be too high by as much
    with pytest.raises(
        RuntimeError, match=r"expected a request that fits into cuda:0 \(1\.50 GB in all\), got one of"
    ) as e:
        budget(limit=1.5 * GB).check()
    assert "3000 tokens with 2.00 GB of activations. Use smaller or fewer references" in str(e.value)


def test_refusal_is_by_the_least_that_a_request_can_do_with(tiny_clip):  # noqa: F811
    from h3te.nodes.host.budget import budget_of_request

    batch = tokens_of(tiny_clip, [{"type": "image", "data": picture(i, 512, 512)} for i in range(4)])["qwen3vl_32b"]
    least = budget_of_request(tiny_clip.patcher, batch, mapped=False).plan
    tiny_clip.encoder.materialise()
    usual = budget_of_request(tiny_clip.patcher, batch).plan
    assert least.bare < usual.bare
    assert least.cast == 0


def test_novram_is_planned_as_nothing_resident(comfy, monkeypatch):  # noqa: F811
    management = comfy.model_management
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NO_VRAM)
    assert budget(weights=2 * GB, available=100 * GB).offloaded == 2 * GB


def test_refusal_comes_before_anything_is_read(comfy, tiny_clip, monkeypatch):  # noqa: F811
    from h3te.nodes.host import budget as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "limit_of", lambda device: 1000)
        with pytest.raises(RuntimeError, match="expected a request that fits into cpu"):
            encode(tiny_clip, PICTURES)
    assert not tiny_clip.encoder.is_loaded
    assert encode(tiny_clip, PICTURES).isfinite().all()


def test_limit_counts_what_the_system_lets_a_device_spill_into(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host import budget as module

    total = comfy.model_management.get_total_memory(CPU)
    assert module.limit_of(CPU) == total + module.psutil.swap_memory().total
    monkeypatch.setattr(comfy.model_management, "get_total_memory", lambda device: 8 * GB)
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    assert module.limit_of(cuda) == 8 * GB
    monkeypatch.setattr(module.platform, "system", lambda: "Windows")
    assert module.limit_of(cuda) == 8 * GB + module.psutil.virtual_memory().total


def test_plan_is_on_the_node_and_in_the_log(tiny_clip, caplog, monkeypatch):  # noqa: F811
    from h3te.nodes.host import any_clip
    from h3te.nodes.host import budget as module

    caplog.set_level("INFO")
    done = any_clip.encode_all([any_clip.Ask(tiny_clip, "a fox", {})], "node")[0]
    assert any(line.startswith("memory plan: weights 0.0") for line in done.details)
    assert "memory plan: weights 0.0" in caplog.text
    assert not done.notes
    monkeypatch.setattr(module.comfy.model_management, "get_free_memory", lambda *a, **k: 1000)
    done = any_clip.encode_all([any_clip.Ask(tiny_clip, "a fox", {})], "node")[0]
    assert done.notes[0].startswith("memory is short: ")
    assert done.notes[0] in caplog.text


def test_layers_ahead_count_only_where_not_everything_fits(open_as, monkeypatch):  # noqa: F811
    from h3te.nodes.host import budget as module

    clip = open_as("int8_convrot")
    monkeypatch.setattr(clip.patcher, "load_device", torch.device("meta"))
    batch = tokens_of(clip)["qwen3vl_32b"]
    monkeypatch.setattr(module.comfy.model_management, "get_total_memory", lambda device: 100 * GB)
    planned = {}
    for free in (1 * GB, 100 * GB):
        monkeypatch.setattr(module.comfy.model_management, "get_free_memory", lambda *a, free=free: free)
        planned[free] = module.budget_of_request(clip.patcher, batch).plan.activations
    layer = sum(p.numel() for p in clip.encoder.model.language_model.layers[0].parameters() if p.dtype == torch.uint8)
    assert planned[1 * GB] - planned[100 * GB] == 2 * layer
