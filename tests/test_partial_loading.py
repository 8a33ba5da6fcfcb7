"""Partial loading: with any budget the encoder gives the same bits, in every weight format, and on one device.

What is offloaded is withheld meanwhile: only `borrow` and the pager can read it (partial_host.py).
"""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.one_device import CPU
from h3te_tests.packed_host import (  # noqa: F401 (fixtures)
    KINDS,
    REQUESTS,
    leaves,
    like_a_device,
    loaded_leaves,
    open_as,
    request,
    stored_as,
)
from h3te_tests.partial_host import BUDGETS, check_budgets, check_leaves, check_one_device, encode

ALL_KINDS = ("bf16", *KINDS)


@pytest.fixture(params=ALL_KINDS)
def clip(open_as, request):  # noqa: F811
    return open_as(request.param)


def results(clip) -> dict:
    """presentation -> hidden states of weights that were never loaded."""
    return {presentation: encode(clip, presentation) for presentation in (request(clip, what) for what in REQUESTS)}


def test_every_budget_gives_the_same_bits(comfy, clip, like_a_device):  # noqa: F811
    check_budgets(comfy, clip, results(clip))


def test_plain_patcher_gives_the_same_bits(comfy, open_as, like_a_device):  # noqa: F811
    clip = open_as("bf16")
    expected = results(clip)
    clip.patcher = comfy.model_patcher.ModelPatcher(clip.cond_stage_model, CPU, CPU)
    check_budgets(comfy, clip, expected)


def test_ours_is_the_plain_patcher(comfy, open_as):  # noqa: F811
    clip = open_as("bf16")
    assert isinstance(clip.patcher, comfy.model_patcher.ModelPatcher)
    # newer releases put a dynamic one in its place for their own models
    assert comfy.model_patcher.ModelPatcher.__name__ == "ModelPatcher"


def test_budgets_differ_in_what_they_load(clip, like_a_device):  # noqa: F811
    """Were nothing ever loaded, or everything, the comparison of budgets would compare nothing."""
    size, loaded = clip.patcher.model_size(), []
    for share in (*BUDGETS, 3):
        clip.patcher.partially_load(CPU, int(share * size))
        loaded.append(clip.patcher.loaded_size())
        clip.patcher.detach()
    assert loaded[0] == 0 and loaded[-1] == size
    assert loaded == sorted(loaded) and len(set(loaded)) >= 5, loaded


def test_loading_more_and_less_step_by_step(comfy, clip, like_a_device):  # noqa: F811
    presentation, patcher = request(clip, "mixed"), clip.patcher
    expected, size = encode(clip, presentation), patcher.model_size()
    patcher.partially_load(CPU, size // 2)
    patcher.partially_load(CPU, 2 * size)  # the rest
    assert patcher.loaded_size() == size
    assert not any(leaf.weight.is_meta for leaf in leaves(clip))
    assert torch.equal(encode(clip, presentation), expected)
    for _ in range(3):
        before = patcher.loaded_size()
        patcher.partially_unload(CPU, size // 4)
        resident = sum(comfy.model_management.module_size(leaf) for leaf in loaded_leaves(clip))
        assert resident == patcher.loaded_size() < before
        assert torch.equal(encode(clip, presentation), expected)
    patcher.detach()
    assert torch.equal(encode(clip, presentation), expected)


@pytest.mark.parametrize("share", [0, 0.5, 3])
def test_every_leaf_meets_its_input_on_the_compute_device(clip, share):
    presentation = request(clip, "mixed")
    expected = encode(clip, presentation)
    called = check_one_device(clip, presentation, share)
    assert called == {name for name, module in clip.cond_stage_model.named_modules() if module in leaves(clip)}
    assert torch.equal(encode(clip, presentation), expected)  # what went to meta came back


@pytest.mark.parametrize("what", REQUESTS)
def test_each_request_runs_on_one_device(open_as, what):  # noqa: F811
    for kind in ("bf16", "nvfp4_awq", "gguf streamed"):
        clip = open_as(kind)
        called = check_one_device(clip, request(clip, what), 0.5)
        assert any("visual" in name for name in called) == (what != "text")


def test_every_weight_is_in_a_leaf_that_casts_itself(clip):
    check_leaves(clip)
