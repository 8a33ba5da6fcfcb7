"""NaN and infinity are errors that name where they began; the good case pays for one check at the end."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import ImageReference, VideoReference, build_encoder, load_encoder
from h3te.encoder.diagnosis import find_bad_part, is_finite
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.golden_cases import clip, pattern
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights
from packed_files import write_packed

NAN, INF = float("nan"), float("inf")
REFERENCES = [ImageReference(pattern(64, 64, 1)), VideoReference(clip(13, 32, 32, 2))]
TEXT, VISION = "model.language_model", "model.visual"
PLANTED = [
    (f"{TEXT}.layers.0.input_layernorm.weight", f"layer 1 of 5 ({TEXT}.layers.0)"),
    (f"{TEXT}.layers.3.mlp.down_proj.weight", f"layer 4 of 5 ({TEXT}.layers.3)"),
    (f"{TEXT}.layers.4.self_attn.k_norm.weight", f"layer 5 of 5 ({TEXT}.layers.4)"),
    (f"{VISION}.patch_embed.proj.weight", f"patch embedding ({VISION}.patch_embed)"),
    (f"{VISION}.pos_embed.weight", f"vision position table ({VISION}.pos_embed)"),
    (f"{VISION}.blocks.0.norm1.bias", f"vision block 1 of 6 ({VISION}.blocks.0)"),
    (f"{VISION}.blocks.5.attn.qkv.weight", f"vision block 6 of 6 ({VISION}.blocks.5)"),
    (f"{VISION}.merger.linear_fc2.bias", f"vision merger ({VISION}.merger)"),
    (f"{VISION}.deepstack_merger_list.1.norm.weight", f"DeepStack merger 2 of 3 ({VISION}.deepstack_merger_list.1)"),
]


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return dict(tiny_weights())


def broken(state, tokenizer, changed: dict[str, float], dtype=torch.bfloat16):
    """An encoder whose named weights each hold one bad value."""
    encoder = build_encoder(tiny_config(), dtype=dtype, tap_layer=TAP_LAYER, tokenizer=tokenizer)
    encoder.load_weights((name, planted(t, changed[name]) if name in changed else t) for name, t in state.items())
    return encoder


def planted(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("name,part", PLANTED, ids=[name for name, _ in PLANTED])
def test_a_bad_weight_is_named_with_its_part_and_the_precision(state, tokenizer_folder, name, part, value):
    encoder = broken(state, tokenizer_folder, {name: value})
    with pytest.raises(RuntimeError) as error:
        encoder.encode("A fox.", REFERENCES)
    assert str(error.value) == (
        f"Encoder: expected finite hidden states, got NaN or infinity, first in {part}, computed in bfloat16 on cpu; "
        f"NaN or infinity is in {name}. The file or a LoRA on it is damaged: remove the LoRA, else download the file "
        "again."
    )


def test_the_first_of_several_bad_parts_is_named(state, tokenizer_folder):
    changed = {f"{TEXT}.layers.{i}.mlp.up_proj.weight": NAN for i in (1, 2)} | {f"{VISION}.blocks.2.norm2.weight": NAN}
    encoder = broken(state, tokenizer_folder, changed)
    with pytest.raises(RuntimeError, match=r"first in layer 2 of 5"):
        encoder.encode("A fox.")
    with pytest.raises(RuntimeError, match=r"first in vision block 3 of 6"):
        encoder.encode("A fox.", REFERENCES)


def test_a_bad_row_of_the_token_table_is_named_by_its_token(state, tokenizer_folder):
    table = f"{TEXT}.embed_tokens.weight"
    encoder = broken(state, tokenizer_folder, {})
    rows = state[table].clone()
    rows[encoder.tokenizer.encode(" fox")[0], 5] = NAN
    encoder.load_weights((name, rows if name == table else tensor) for name, tensor in state.items())
    with pytest.raises(RuntimeError, match=rf"first in token embedding of token 2 of 3, .* is in {table}\. The file"):
        encoder.encode("A fox.")
    encoder.encode("A bear.")  # the row is not used


def test_overflow_with_finite_weights_points_at_the_precision(state, tokenizer_folder):
    norm = f"{TEXT}.layers.2.input_layernorm.weight"
    encoder = broken(state, tokenizer_folder, {}, torch.float32)
    encoder.load_weights((n, t.float() * 3e38 if n == norm else t) for n, t in state.items())
    message = r"first in layer 3 of 5 .*, computed in float32 on cpu; its weights are finite.* try dtype float32"
    with pytest.raises(RuntimeError, match=message):
        encoder.encode("A fox.")


@pytest.mark.parametrize("linear", ["mlp.down_proj", "self_attn.o_proj"])
def test_a_bad_scale_of_the_input_is_named(tiny_checkpoint, tokenizer_folder, tmp_path, linear):
    """AWQ's pre_quant_scale is no weight of its own, and the file's other tensors are finite."""
    path = write_packed(tiny_checkpoint, tmp_path / "tiny.safetensors", "nvfp4_awq", tap=TAP_LAYER)
    encoder = load_encoder(path, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    encoder.materialise()
    part = f"{TEXT}.layers.2.{linear}"
    scaled = encoder.get_submodule(part)
    scaled.input_scale = planted(scaled.input_scale, NAN)
    with pytest.raises(
        RuntimeError, match=rf"first in layer 3 of 5 .*; NaN or infinity is in {part}\.pre_quant_scale\. The"
    ):
        encoder.encode("A fox.")


def test_values_that_are_finite_the_second_time_blame_the_device(state, tokenizer_folder, monkeypatch):
    encoder = broken(state, tokenizer_folder, {})
    norm = encoder.model.language_model.layers[1].input_layernorm
    once = iter([NAN])
    calm = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: calm(x) * next(once, 1.0))
    with pytest.raises(RuntimeError, match=r"bfloat16 on cpu, and finite values when .*: undo overclocking"):
        encoder.encode("A fox.")


def test_the_encoder_is_usable_after_the_error(state, tokenizer_folder):
    encoder = broken(state, tokenizer_folder, {f"{VISION}.blocks.0.norm1.bias": NAN})
    wanted = encoder.encode("A fox.").hidden
    with pytest.raises(RuntimeError, match="first in vision block 1"):
        encoder.encode("A fox.", REFERENCES)
    assert torch.equal(encoder.encode("A fox.").hidden, wanted)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_the_search_ends_at_the_first_bad_part_and_can_be_stopped(state, tokenizer_folder):
    encoder = broken(state, tokenizer_folder, {f"{TEXT}.layers.1.mlp.up_proj.weight": NAN})
    calls = []
    with pytest.raises(RuntimeError, match="first in layer 2 of 5"):
        encoder.encode("A fox.", progress=lambda done, total, what: calls.append(done))
    assert calls == [1, 2, 3, 4, 5, 1]

    def stop(done, total, what):
        calls.append(done)
        if calls.count(1) > 1:
            raise KeyboardInterrupt

    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        encoder.encode("A fox.", progress=stop)
    assert not any(module._forward_hooks for module in encoder.modules())


def test_the_good_case_checks_once(state, tokenizer_folder, monkeypatch):
    encoder = broken(state, tokenizer_folder, {})
    checked, isfinite = [], torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda x: checked.append(tuple(x.shape)) or isfinite(x))
    encoder.encode("A fox.", REFERENCES[:1])
    assert checked == [(6 + 66 + 3, 64)]


def test_pixels_that_are_not_finite_are_refused_before_anything_is_computed(state, tokenizer_folder):
    encoder = broken(state, tokenizer_folder, {})
    with pytest.raises(ValueError, match=r"present, <Picture 1>: expected finite pixels"):
        encoder.encode("", [ImageReference(torch.full((64, 64, 3), NAN))])
    ids = torch.tensor([151652, 151655, 151653])
    for name, grid in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
        given = {name: torch.full((4, 1536), INF), grid: torch.tensor([[1, 2, 2]])}
        with pytest.raises(ValueError, match=rf"encode_ids: expected finite {name}, got NaN or infinity\. Check"):
            encoder.encode_ids(ids, **given)


def test_tensors_without_values_and_good_runs_have_no_bad_part(state, tokenizer_folder):
    assert is_finite(torch.empty(3, device="meta"))
    encoder = broken(state, tokenizer_folder, {})
    assert find_bad_part(encoder.model, lambda: encoder.encode("A fox.", REFERENCES)) is None


# in ComfyUI


def bad_clip(checkpoint, tokenizer):
    made = make_tiny_clip(checkpoint, tokenizer)
    made.encoder.materialise()
    leaf = made.encoder.model.language_model.layers[2].mlp.gate_proj
    leaf.weight = torch.nn.Parameter(planted(leaf.weight.data, NAN), requires_grad=False)
    return made


def test_the_error_reaches_comfyui_from_every_door(comfy, tiny_checkpoint, tokenizer_folder):  # noqa: F811
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.encode_references import EncodeReferences

    made = bad_clip(tiny_checkpoint, tokenizer_folder)
    asked = {"clip": made, "prompt": "a fox", "width": 256, "height": 192, "length": 22}
    doors = (
        lambda: EncodeReferences.execute(**asked, ref_images={"ref_image_0": picture(1)}),
        lambda: EncodeKeyframes.execute(**asked),
        lambda: comfy.nodes.CLIPTextEncode().encode(made, "a fox"),
    )
    for door in doors:
        with pytest.raises(RuntimeError, match=r"first in layer 3 of 5 .*bfloat16 .*layers\.2\.mlp\.gate_proj\.weight"):
            door()


@pytest.mark.parametrize("load", ["patched", "cast per call"])
def test_a_broken_lora_is_named_wherever_it_is_applied(tiny_clip, load):  # noqa: F811
    key = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
    twin = tiny_clip.clone()
    assert twin.patcher.add_patches({key: ("diff", (torch.full((64, 160), INF),))}) == [key]
    tokens = twin.tokenize("a fox")
    if load == "cast per call":
        twin.load_model = lambda tokens: twin.encoder.materialise() or twin.patcher.partially_load(CPU, 1)
    with pytest.raises(RuntimeError, match=r"first in layer 2 of 5 .*layers\.1\.mlp\.down_proj\.weight\. The file or"):
        twin.encode_from_tokens(tokens)
