"""The checks of partial loading can fail: each planted mistake turns those red that are there to find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.one_device import META, OneDevice
from h3te_tests.packed_host import like_a_device, open_as, request, stored_as  # noqa: F401 (fixtures)
from h3te_tests.partial_host import check_budgets, check_leaves, check_one_device, encode, withheld
from torch import nn

RED = (AssertionError, RuntimeError, NotImplementedError)


def language(clip):
    return clip.encoder.model.language_model


def plain_linear(clip) -> None:
    """A module of torch's own, which the host leaves on the CPU without a word."""
    mlp = language(clip).layers[1].mlp
    with mlp.gate_proj.borrow(torch.empty(0)) as (weight, _):
        planted = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        planted.weight = nn.Parameter(weight.clone(), requires_grad=False)
    mlp.gate_proj = planted


def direct(module, forward: Callable) -> None:
    """A leaf whose forward takes its parameter as it lies there."""
    module.forward = lambda *args: forward(module, *args)


def cpu_weight_in_linear(clip) -> None:
    direct(language(clip).layers[2].self_attn.o_proj, lambda leaf, x: F.linear(x, leaf.weight))


def cpu_weight_in_embedding(clip) -> None:
    positions = clip.encoder.model.visual.pos_embed
    direct(positions, lambda leaf, x, taps, weights: (leaf.weight[taps] * weights[:, :, None]).sum(1))


def token_rows_on_the_cpu(clip) -> None:
    table = language(clip).embed_tokens
    language(clip).embed_tokens = lambda ids, device, dtype: table(ids, torch.device("cpu"), dtype)


def cpu_weight_in_norm(clip) -> None:
    def forward(leaf, x):
        h = x.float()
        return leaf.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + leaf.eps)).to(x.dtype)

    direct(language(clip).layers[0].input_layernorm, forward)


def cpu_weight_in_vision_norm(clip) -> None:
    norm = clip.encoder.model.visual.blocks[0].norm1
    direct(norm, lambda leaf, x: F.layer_norm(x, leaf.weight.shape, leaf.weight, leaf.bias, leaf.eps))


def cpu_bias_in_linear(clip) -> None:
    def forward(leaf, x):
        with leaf.borrow(x) as (weight, _):
            return F.linear(x, leaf.matrix(weight, x.dtype), leaf.bias.to(x.dtype))

    direct(clip.encoder.model.visual.blocks[1].attn.qkv, forward)


def lent_weight_kept(clip) -> None:
    def forward(leaf, x):
        with leaf.borrow(x) as (weight, _):
            pass
        return F.linear(x, leaf.matrix(weight, x.dtype))

    direct(language(clip).layers[0].mlp.up_proj, forward)


def rest_read_past_borrow(clip) -> None:
    def forward(leaf, x):
        parts = leaf.rest.parts()
        return F.linear(x, leaf.matrix(parts["weight"] if leaf.packing is None else parts, x.dtype))

    direct(language(clip).layers[3].mlp.gate_proj, forward)


@dataclass(frozen=True)
class Mistake:
    """`budgets`, `device`, `leaves`: which of the checks find it."""

    plant: Callable
    budgets: bool = True
    device: bool = True
    leaves: bool = False
    kind: str = "bf16"

    def __str__(self) -> str:
        return f"{self.plant.__name__}, {self.kind}"


MISTAKES = (
    Mistake(plain_linear, leaves=True),
    Mistake(cpu_weight_in_linear),
    Mistake(cpu_weight_in_linear, kind="bf16 streamed", device=False),  # its placeholder is on meta itself
    Mistake(cpu_weight_in_linear, kind="int8_row"),
    Mistake(cpu_weight_in_embedding),
    Mistake(token_rows_on_the_cpu, budgets=False),
    Mistake(cpu_weight_in_norm),
    Mistake(cpu_weight_in_norm, kind="nvfp4_awq"),
    Mistake(cpu_weight_in_vision_norm),
    Mistake(cpu_bias_in_linear),
    Mistake(cpu_bias_in_linear, kind="gguf"),
    Mistake(lent_weight_kept, device=False),
    Mistake(lent_weight_kept, device=False, kind="fp8"),
    Mistake(rest_read_past_borrow, kind="nvfp4_awq"),
    Mistake(rest_read_past_borrow, kind="gguf streamed"),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistake_turns_the_checks_red(comfy, open_as, like_a_device, mistake):  # noqa: F811
    clip = open_as(mistake.kind)
    presentation = request(clip, "mixed")
    expected = {presentation: encode(clip, presentation)}
    check_budgets(comfy, clip, expected, budgets=[0])  # green before
    mistake.plant(clip)
    if mistake.kind == "bf16":  # a CPU alone does not show it
        assert torch.equal(encode(clip, presentation), expected[presentation])
    assert is_red(lambda: check_budgets(comfy, clip, expected, budgets=[0])) == mistake.budgets
    assert is_red(lambda: check_leaves(clip)) == mistake.leaves
    assert is_red(lambda: check_one_device(clip, presentation, 0)) == mistake.device


def is_red(check: Callable[[], object]) -> bool:
    try:
        check()
    except RED:
        return True
    return False


def test_budget_that_is_exceeded_is_red(comfy, open_as, like_a_device, monkeypatch):  # noqa: F811
    clip = open_as("bf16")
    patcher = type(clip.patcher)
    load = patcher.partially_load
    monkeypatch.setattr(patcher, "partially_load", lambda self, device, budget: load(self, device, 10**12))
    presentation = request(clip, "text")
    with pytest.raises(AssertionError):
        check_budgets(comfy, clip, {presentation: encode(clip, presentation)}, budgets=[0.5])


def test_bytes_that_are_counted_but_not_loaded_are_red(comfy, open_as, like_a_device, monkeypatch):  # noqa: F811
    clip = open_as("bf16")
    monkeypatch.setattr(type(clip.patcher), "loaded_size", lambda self: 0)
    with pytest.raises(AssertionError):
        check_budgets(comfy, clip, {}, budgets=[0.9])


@pytest.mark.parametrize("kind", ["bf16", "bf16 streamed", "fp8", "fp8_e5m2", "nvfp4_awq"])
def test_withheld_weights_read_as_nan_or_255(open_as, kind):  # noqa: F811
    clip = open_as(kind)
    tree = clip.cond_stage_model
    before = {name: parameter.data_ptr() for name, parameter in tree.named_parameters()}
    with withheld(clip):
        for parameter in tree.parameters():
            assert parameter.is_meta or bool(parameter.isnan().all())
        for module in tree.modules():
            parts = module.rest.parts().values() if getattr(module, "rest", None) is not None else ()
            assert all(bool((part.reshape(-1).view(torch.uint8) == 255).all()) for part in parts)
    assert {name: parameter.data_ptr() for name, parameter in tree.named_parameters()} == before


def test_a_plain_linear_is_caught_on_meta():
    linear = nn.Linear(8, 8, bias=False)
    with OneDevice(), pytest.raises(RuntimeError, match=r"\['cpu', 'meta'\]"):
        linear(torch.empty(2, 8, device=META))
