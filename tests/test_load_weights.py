"""`load_weights` and the life of weights: all or nothing, what is skipped, moving to a device and back."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import Encoder, EncoderConfig, build_encoder
from h3te_tests.golden_cases import CASES, expected, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights

EMBEDDING = "model.language_model.embed_tokens.weight"
LAYER = "model.language_model.layers.2."
UNNEEDED = {"lm_head.weight", "model.language_model.norm.weight"}
PER_LAYER = (
    "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.q_proj",
    "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm",
)  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_weights())


@pytest.fixture(scope="module")
def needed(weights) -> set[str]:
    past_the_tap = f"model.language_model.layers.{TAP_LAYER}."
    return {name for name in weights if name not in UNNEEDED and not name.startswith(past_the_tap)}


@pytest.fixture
def encoder() -> Encoder:
    return build_encoder(tiny_config(), dtype=torch.float32, tap_layer=TAP_LAYER)


def golden(encoder: Encoder, name: str = "text") -> float:
    return relative_error(encoder.encode_ids(expected()[f"{name}.ids"]), expected()[f"{name}.hidden"])


# what is taken


def test_the_needed_names_are_taken_and_returned(encoder, weights, needed):
    assert encoder.load_weights(weights.items()) == needed
    assert len(needed) == 1 + TAP_LAYER * len(PER_LAYER) + 3 + 6 * 12 + 4 * 6
    assert golden(encoder) <= 2e-4


def test_unneeded_tensors_may_be_absent_or_anything(encoder, weights, needed):
    pairs = [(name, weights[name]) for name in needed]
    pairs += [("lm_head.weight", torch.zeros(1)), ("model.language_model.layers.63.self_attn.q_proj.weight", None)]
    assert encoder.load_weights(pairs) == needed
    assert golden(encoder) <= 2e-4


def test_a_generator_is_read_once_to_its_end(encoder, weights, needed):
    given = []

    def pairs():
        for name, tensor in weights.items():
            given.append(name)
            yield name, tensor

    assert encoder.load_weights(pairs()) == needed
    assert given == list(weights)


def test_tensors_are_used_as_they_are(encoder, weights, needed):
    encoder.load_weights(weights.items())
    for name in needed:
        held = encoder.slots.get(name)
        assert held.data_ptr() == weights[name].data_ptr(), name
        assert held.dtype == torch.bfloat16


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_weights_may_be_stored_in_other_float_types(encoder, weights, stored):
    encoder.load_weights((name, tensor.to(stored)) for name, tensor in weights.items())
    assert golden(encoder) <= (2e-4 if stored == torch.float32 else 2e-3)


def test_parameter_names_are_the_released_ones(encoder, needed):
    assert {name for name, _ in encoder.named_parameters()} == needed - {EMBEDDING}


def test_loading_again_replaces_the_weights(encoder, weights):
    encoder.load_weights((name, torch.zeros_like(tensor)) for name, tensor in weights.items())
    assert golden(encoder) > 0.5
    encoder.load_weights(weights.items())
    assert golden(encoder) <= 2e-4


def test_loading_again_while_the_weights_are_away_forgets_the_old_ones(encoder, weights):
    encoder.load_weights((name, torch.zeros_like(tensor)) for name, tensor in weights.items())
    encoder.to("meta")
    encoder.load_weights(weights.items())
    assert not any(module.at_rest for module in encoder.modules() if hasattr(module, "at_rest"))
    encoder.to("meta").to("cpu")
    assert golden(encoder) <= 2e-4


# what is refused, with nothing changed


def held(encoder: Encoder) -> list[int]:
    return [id(encoder.slots.get(name)) for name in encoder.slots.names]


def refuse(encoder: Encoder, weights: dict[str, torch.Tensor]) -> str:
    """The error's text; nothing has changed, before weights came and after."""
    before = held(encoder)
    with pytest.raises(ValueError, match=r"^load_weights: expected ") as error:
        encoder.load_weights(weights.items())
    assert held(encoder) == before
    return str(error.value)


@pytest.mark.parametrize("loaded", [False, True])
def test_an_error_changes_nothing(encoder, weights, loaded):
    if loaded:
        encoder.load_weights(weights.items())
    refuse(encoder, {**weights, "visual.extra": torch.zeros(1)})
    refuse(encoder, {name: tensor for name, tensor in weights.items() if "q_norm" not in name})
    refuse(encoder, {**weights, LAYER + "mlp.up_proj.weight": torch.zeros(3, 3)})
    assert encoder.is_loaded is loaded
    if loaded:
        assert golden(encoder) <= 2e-4


def test_unknown_names_are_all_listed(encoder, weights):
    unknown = ["model.layers.0.mlp.up_proj.weight", LAYER + "self_attn.q_proj.bias", "model.visual.blocks.6.norm1.bias"]
    message = refuse(encoder, weights | {name: torch.zeros(1) for name in unknown})
    assert "got 3 unknown" in message
    assert all(name in message for name in unknown)


@pytest.mark.parametrize("part", PER_LAYER)
def test_any_missing_tensor_of_a_layer_is_named(encoder, weights, part):
    name = f"{LAYER}{part}.weight"
    message = refuse(encoder, {n: tensor for n, tensor in weights.items() if n != name})
    assert f"missing: {name}." in message
    assert message.endswith("in one call.")


def test_all_missing_tensors_are_listed(encoder, weights, needed):
    message = refuse(encoder, {})
    assert f"expected {len(needed)} tensors, got 0" in message
    assert all(name in message for name in needed)


@pytest.mark.parametrize("name", [EMBEDDING, "model.visual.pos_embed.weight", "model.visual.patch_embed.proj.bias"])
def test_a_missing_table_or_bias_is_named(encoder, weights, name):
    assert name in refuse(encoder, {n: tensor for n, tensor in weights.items() if n != name})


@pytest.mark.parametrize("name", [EMBEDDING, LAYER + "mlp.down_proj.weight", "model.visual.merger.norm.bias"])
def test_a_wrong_shape_is_named_with_both_shapes(encoder, weights, name):
    shape = list(weights[name].shape)
    message = refuse(encoder, {**weights, name: torch.zeros(7, 9)})
    assert f"{name} is [7, 9], not {shape}" in message


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float64])
def test_packed_tensors_are_refused_by_name(encoder, weights, dtype):
    name = LAYER + "mlp.down_proj.weight"
    message = refuse(encoder, {**weights, name: weights[name].to(dtype)})
    assert f"{name} ({dtype}, cpu)" in message


def test_tensors_without_data_are_refused(encoder, weights):
    name = LAYER + "mlp.down_proj.weight"
    assert f"{name} (torch.bfloat16, meta)" in refuse(encoder, {**weights, name: weights[name].to("meta")})


def test_an_encoder_without_vision_knows_no_vision_tensors(weights, needed):
    config = EncoderConfig(EncoderConfig.from_dict(tiny_config()).text, None)
    encoder = build_encoder(config, dtype=torch.float32, tap_layer=TAP_LAYER)
    assert "unknown: model.visual." in refuse(encoder, weights)
    text = {name: tensor for name, tensor in weights.items() if ".visual." not in name}
    assert encoder.load_weights(text.items()) == {name for name in needed if ".visual." not in name}
    assert golden(encoder) <= 2e-4


# the life of weights


def test_is_loaded_before_and_after(encoder, weights):
    assert encoder.is_loaded is False
    encoder.offload_to_cpu()  # nothing to do, nothing to fail
    assert encoder.is_loaded is False
    encoder.load_weights(weights.items())
    assert encoder.is_loaded is True


@pytest.mark.parametrize("act", ["encode_ids", "encode", "load_to_device", "materialise"])
def test_using_an_encoder_before_its_weights_came_says_what_to_do(tokenizer_folder, act):
    encoder = build_encoder(tiny_config(), tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    given = {"encode_ids": [torch.tensor([1])], "encode": ["A fox."]}.get(act, [])
    with pytest.raises(RuntimeError, match=r"expected loaded weights, got none for .* Call load_weights"):
        getattr(encoder, act)(*given)
    assert encoder.is_loaded is False


def test_load_to_device_and_offload_restore_the_given_tensors(weights):
    encoder = build_encoder(tiny_config(), dtype=torch.float32, device="meta", tap_layer=TAP_LAYER)
    encoder.load_weights(weights.items())
    pointers = {name: encoder.slots.get(name).data_ptr() for name in encoder.slots.names}
    for _ in range(2):
        encoder.load_to_device()
        assert {p.device.type for p in encoder.parameters()} == {"meta"}
        assert encoder.is_loaded
        encoder.offload_to_cpu()
        assert {name: encoder.slots.get(name).data_ptr() for name in encoder.slots.names} == pointers
    encoder.device = torch.device("cpu")
    assert golden(encoder) <= 2e-4


def test_encoding_between_devices_leaves_the_weights_where_they_rest(weights, tokenizer_folder):
    encoder = build_encoder(tiny_config(), device="meta", tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    encoder.load_weights(weights.items())
    case = CASES["mixed_in_request_order"]
    got = encoder.encode(case["prompt"], references(case))
    assert got.hidden.device.type == "meta"
    assert got.hidden.shape == (1, case["tokens"], 64)
    assert got.token_ids.device.type == got.token_tags.device.type == "cpu"
    assert {p.device.type for p in encoder.parameters()} == {"cpu"}


def test_weight_bytes_counts_what_is_stored(encoder, weights, needed):
    encoder.load_weights(weights.items())
    assert encoder.weight_bytes == sum(2 * weights[name].numel() for name in needed)
    encoder.load_weights((name, tensor.float()) for name, tensor in weights.items())
    assert encoder.weight_bytes == sum(4 * weights[name].numel() for name in needed)


def test_constants_of_the_contract(encoder):
    from h3te.encoder import HIDDEN_SIZE, SELECTED_LAYER

    assert (SELECTED_LAYER, HIDDEN_SIZE, encoder.tp_size) == (50, 5120, 1)
    assert encoder.tap_layer == TAP_LAYER
    assert build_encoder(tiny_config(num_hidden_layers=64)).tap_layer == 50
