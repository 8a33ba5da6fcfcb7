"""Leaves: borrowing on another device, moving without copies, a foreign `ops.Leaf` in every place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from h3te.encoder import Encoder, build_encoder, load_encoder
from h3te.encoder.layers import Layers, layer_classes
from h3te.encoder.leaf import Leaf, PlainOps
from h3te_tests.foreign_leaf import ForeignLeaf, ForeignOps, PlainAttributes
from h3te_tests.golden_cases import CASES, expected, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights
from torch import nn

META, CPU = torch.device("meta"), torch.device("cpu")
EMBEDDING = "model.language_model.embed_tokens.weight"


@pytest.fixture
def leaf() -> Leaf:
    return Leaf(torch.arange(6.0).view(2, 3), torch.ones(2))


@pytest.fixture
def encoder(tiny_checkpoint, tokenizer_folder) -> Encoder:
    return load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


def golden(encoder: Encoder, name: str = "mixed_in_request_order") -> float:
    got = encoder.encode(CASES[name]["prompt"], references(CASES[name]))
    return relative_error(got.hidden[0], expected()[f"{name}.hidden"])


# borrowing


def test_borrow_where_the_weight_rests_gives_it_without_a_copy(leaf):
    with leaf.borrow(torch.empty(1, dtype=torch.bfloat16)) as (weight, bias):
        assert weight.data_ptr() == leaf.weight.data_ptr()
        assert bias.data_ptr() == leaf.bias.data_ptr()
        assert weight.dtype == torch.float32  # as stored, whatever the input is


def test_borrow_on_another_device_leaves_the_weight_where_it_rests(leaf):
    with leaf.borrow(torch.empty(1, device=META)) as (weight, bias):
        assert weight.device == bias.device == META
    assert leaf.weight.device == leaf.bias.device == CPU


def test_borrow_without_a_bias_gives_none():
    leaf = Leaf(torch.ones(2, 2))
    with leaf.borrow(torch.empty(1, device=META)) as (weight, bias):
        assert weight.shape == (2, 2)
        assert bias is None
    assert list(leaf.state_dict()) == ["weight"]


def test_parameters_have_no_gradient(leaf):
    assert not any(p.requires_grad for p in leaf.parameters())


# moving


def test_moving_away_and_back_restores_the_same_storage(leaf):
    weight, bias = leaf.weight.data_ptr(), leaf.bias.data_ptr()
    for _ in range(2):
        leaf.to(META)
        assert leaf.weight.device == leaf.bias.device == META
        leaf.to(CPU)
        assert (leaf.weight.data_ptr(), leaf.bias.data_ptr()) == (weight, bias)
    assert torch.equal(leaf.weight, torch.arange(6.0).view(2, 3))


def test_moving_to_where_it_is_keeps_the_parameter_itself(leaf):
    parameters = list(leaf.parameters())
    leaf.to(CPU).float().cpu()
    assert [id(p) for p in leaf.parameters()] == [id(p) for p in parameters]


def test_changing_the_type_converts_and_forgets_what_rested(leaf):
    leaf.to(META)
    leaf.to(torch.bfloat16)
    leaf.to(CPU)
    assert leaf.weight.dtype == torch.bfloat16
    assert leaf.at_rest == {}
    assert torch.equal(leaf.weight.float(), torch.arange(6.0).view(2, 3))
    leaf.to(torch.float32)
    assert leaf.weight.dtype == torch.float32


def test_a_placeholder_stays_one_until_its_weight_comes():
    leaf = Layers(PlainOps(), torch.bfloat16).linear(3, 2, bias=True)
    leaf.to(CPU).to(torch.float32)
    assert leaf.weight.is_meta
    assert leaf.at_rest == {}


def test_a_move_that_fails_half_way_leaves_an_encoder_that_works(encoder):
    encoder.materialise()
    pointers = {name: encoder.slots.get(name).data_ptr() for name in encoder.slots.names}
    moved = 0

    def fail_later(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal moved
        moved += tensor.numel() > 0
        if moved > 40:
            raise torch.OutOfMemoryError("pretended")
        return tensor.to(META)

    with pytest.raises(torch.OutOfMemoryError):
        encoder._apply(fail_later)
    assert {p.device for p in encoder.parameters()} == {CPU, META}
    assert encoder.is_loaded
    encoder.offload_to_cpu()
    assert {name: encoder.slots.get(name).data_ptr() for name in encoder.slots.names} == pointers
    assert golden(encoder) <= 2e-4


def test_an_encoder_moved_away_and_back_is_the_same(encoder):
    before = encoder.encode("A fox.").hidden
    encoder.to(META)
    assert encoder.is_loaded
    encoder.to(CPU)
    assert torch.equal(encoder.encode("A fox.").hidden, before)
    assert len(encoder.source.opened) == 2  # nothing was read again


# what is in the tree


def test_the_embedding_table_is_no_parameter_and_stays_on_the_cpu(encoder):
    encoder.materialise()
    assert EMBEDDING not in dict(encoder.named_parameters())
    assert not any(tuple(p.shape) == (151_936, 64) for p in encoder.parameters())
    encoder.to(META)
    assert encoder.slots.get(EMBEDDING).device == CPU


def test_there_are_no_buffers(encoder):
    assert list(encoder.buffers()) == []


def test_every_parameter_belongs_to_a_leaf(encoder):
    leaves = {name: module for name, module in encoder.named_modules() if isinstance(module, Leaf)}
    owned = {f"{name}.{parameter}" for name, module in leaves.items() for parameter, _ in module.named_parameters()}
    assert owned == {name for name, _ in encoder.named_parameters()} == set(encoder.slots.names) - {EMBEDDING}


# a foreign leaf


@pytest.mark.parametrize("leaf", [ForeignLeaf, PlainAttributes])
def test_a_foreign_leaf_is_used_for_every_weight(tiny_checkpoint, tokenizer_folder, leaf):
    ops = ForeignOps(leaf)
    encoder = load_encoder(
        tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder, ops=ops
    )
    assert golden(encoder) <= 2e-4
    leaves = [module for module in encoder.modules() if isinstance(module, ops.Leaf)]
    modules = {name.rpartition(".")[0] for name in encoder.slots.names} - {EMBEDDING.rpartition(".")[0]}
    assert len(leaves) == len(modules) == TAP_LAYER * 11 + 2 + 6 * 6 + 4 * 3
    assert {id(module) for module in leaves} == set(ops.Leaf.borrowed)
    assert not any(isinstance(module, Leaf) for module in encoder.modules())
    assert encoder.is_loaded


def test_a_foreign_leaf_takes_given_weights_too(tokenizer_folder):
    encoder = build_encoder(
        tiny_config(), dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder, ops=ForeignOps(ForeignLeaf)
    )
    encoder.load_weights(tiny_weights())
    assert golden(encoder) <= 2e-4


def test_two_leaf_classes_do_not_mix():
    first, second = ForeignOps(ForeignLeaf).Leaf, ForeignOps(ForeignLeaf).Leaf
    assert issubclass(layer_classes(first).Linear, first)
    assert not issubclass(layer_classes(second).Linear, first)
    assert layer_classes(first) is layer_classes(first)


# numerics of single layers


def test_rms_norm_multiplies_after_the_cast_as_released():
    norm = Layers(PlainOps(), torch.bfloat16).rms_norm(64, 1e-6)
    norm.weight = nn.Parameter(torch.rand(64).bfloat16() + 0.5, requires_grad=False)
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert torch.equal(norm(x), norm.weight * normed)
    assert not torch.equal(norm(x), torch.nn.functional.rms_norm(x, (64,), norm.weight, 1e-6))


def test_position_table_sums_in_float32_whatever_it_is_stored_in():
    table = Layers(PlainOps(), torch.bfloat16).position_table(9, 4)
    table.weight = nn.Parameter(torch.rand(9, 4).bfloat16(), requires_grad=False)
    taps, weights = torch.tensor([[0, 1, 3, 4]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    added = table(torch.empty(0, dtype=torch.bfloat16), taps, weights)
    assert added.dtype == torch.float32
    assert torch.equal(added, (table.weight.float()[taps] * weights[..., None]).sum(1))


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("way", ["forward wrapped", "module exchanged", "hook"])
def test_what_others_put_around_a_linear_of_the_mlp_sees_its_input_and_its_own_output(name, way, monkeypatch):
    """ComfyUI's LoRAs that go past the weight wrap forward and add to what it gives."""
    from h3te.encoder import layers as module
    from h3te.encoder.decoder import MLP

    monkeypatch.setattr(module, "SPLIT_FROM", 1)
    torch.manual_seed(2)
    sizes = SimpleNamespace(hidden_size=8, intermediate_size=24)
    mlp = MLP(sizes, module.Layers(PlainOps, torch.float32))
    for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        linear.assign("weight", torch.randn(linear.weight.shape))

    x, seen = torch.randn(5, 8), []
    weights = {n: getattr(mlp, n).weight for n in ("gate_proj", "up_proj", "down_proj")}
    linear = getattr(mlp, name)

    def around(given: torch.Tensor, given_out: torch.Tensor) -> torch.Tensor:
        seen.append((given.clone(), given_out.clone()))
        return given_out + given.sum(-1, keepdim=True)

    plain = F.silu(x @ weights["gate_proj"].T), x @ weights["up_proj"].T
    assert torch.allclose(mlp(x), (plain[0] * plain[1]) @ weights["down_proj"].T, atol=1e-4)
    if way == "forward wrapped":
        forward = linear.forward
        linear.forward = lambda given, *args, **options: around(given, forward(given, *args, **options))
    elif way == "hook":
        linear.register_forward_hook(lambda _, given, out: around(given[0], out))
    else:
        exchanged = nn.Module()
        exchanged.forward = lambda given: around(given, F.linear(given, weights[name]))
        setattr(mlp, name, exchanged)

    def wanted(n: str, given: torch.Tensor) -> torch.Tensor:
        y = given @ weights[n].T
        return y + given.sum(-1, keepdim=True) if n == name else y

    expected = wanted("down_proj", F.silu(wanted("gate_proj", x)) * wanted("up_proj", x))
    assert torch.allclose(mlp(x), expected, atol=1e-4)
    ((given, out),) = seen
    assert torch.allclose(out, given @ weights[name].T, atol=1e-4)
