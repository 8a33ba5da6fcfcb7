"""LoRA through ComfyUI's loaders: on plain, packed and streamed weights it is the delta added to the matrix they stand
for, however much is loaded; what would be wrong is refused by name.

The reference is a plain float32 encoder whose matrices are unpacked, given the delta, and loaded as weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.one_device import CPU, META, OneDevice
from h3te_tests.packed_host import KINDS, like_a_device, open_as, pictures, stored_as  # noqa: F401 (fixtures)
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config
from safetensors.torch import save_file

PREFIX = "text_encoders.qwen3vl_32b.transformer."
RANK = 4
AWQ = ("nvfp4_awq", "nvfp4_awq streamed")
OPEN = ("model.layers.0.self_attn.o_proj", "model.layers.3.mlp.down_proj")  # also in an AWQ file
SCALED = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.v_proj",
          "model.layers.2.mlp.gate_proj", "model.layers.4.mlp.up_proj")  # fmt: skip
VISION = ("visual.blocks.0.attn.qkv", "visual.merger.linear_fc2")
WRITTEN = "bf16"  # mapped: ComfyUI writes the LoRA into the weight itself, rounded to bfloat16
EXACT, ROUNDED = 2e-5, 2e-2  # relative L2 in float32; with weights rounded to bfloat16


def released(layer: str) -> str:
    """`model.layers.0...` of ComfyUI's names -> the released name of its weight."""
    return layer.replace("model.layers", "model.language_model.layers").replace("visual.", "model.visual.") + ".weight"


def deltas(layers, seed: int = 5) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """{layer: (up [N, r], down [r, K])}."""
    generator, known = torch.Generator().manual_seed(seed), shapes(tiny_config())
    made = {}
    for layer in layers:
        rows, columns = known[released(layer)]
        size = (16 * columns) ** -0.25  # half of the weights' own size
        made[layer] = tuple(torch.randn(s, generator=generator) * size for s in ((rows, RANK), (RANK, columns)))
    return made


def lora_file(made) -> dict[str, torch.Tensor]:
    parts = {}
    for layer, (up, down) in made.items():
        parts |= {f"{PREFIX}{layer}.lora_up.weight": up, f"{PREFIX}{layer}.lora_down.weight": down}
    return parts


def targets(kind: str) -> tuple[str, ...]:
    """The vision tower of a packed file is plain bf16: ComfyUI writes a LoRA on it, with its rounding."""
    vision = VISION if kind.endswith("streamed") or kind == WRITTEN else ()
    return (*OPEN, *vision) if kind in AWQ else (*OPEN, *SCALED, *vision)


def with_lora(comfy, clip, file, strength: float = 1.0):  # noqa: F811
    return comfy.sd.load_lora_for_models(None, clip, file, 0.0, strength)[1]


def encode(clip):
    """Through the patcher, as ComfyUI does it."""
    return clip.encode_from_tokens(clip.tokenize("a fox", images=[picture_once()]))


def picture_once():
    from h3te_tests.comfy_host import picture

    return picture(1, 64, 64)


def at_budget(clip, budget: int):
    """Encode with so many bytes loaded."""
    clip.patcher.partially_load(CPU, budget)
    presentation = clip.tokenize("a fox", images=[picture_once()])["qwen3vl_32b"].presentation
    return clip.encoder.encode_presentation(presentation).hidden.float()


def reference(clip, made, strength: float = 1.0, biases=()):
    """What the LoRA means: a plain float32 encoder with `W + strength * up @ down` (AWQ: W times its scale)."""
    from h3te.encoder import build_encoder
    from h3te.encoder.packing import unpack

    source, added = clip.encoder.source, {released(layer): up @ down for layer, (up, down) in made.items()}

    def weight(name: str) -> torch.Tensor:
        stored = source.weights[name]
        parts = stored.fit({part: source.files.read(entry) for part, entry in stored.parts.items()})
        matrix = parts["weight"].float() if stored.packing is None else unpack(stored.packing, parts, torch.float32)
        if stored.input_scale is not None:
            matrix = matrix * source.files.read(stored.input_scale).float()
        return matrix + strength * added[name] if name in added else matrix + dict(biases).get(name, 0)

    plain = build_encoder(tiny_config(), dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=clip.encoder.tokenizer)
    plain.load_weights((name, weight(name)) for name in source.weights)
    presentation = clip.tokenize("a fox", images=[picture_once()])["qwen3vl_32b"].presentation
    return plain.encode_presentation(presentation).hidden


def error(found, expected) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", (WRITTEN, *KINDS))
def test_lora_is_the_delta_on_the_matrix_however_much_is_loaded(comfy, open_as, like_a_device, kind):  # noqa: F811
    clip = open_as(kind, torch.float32)
    before = encode(clip)
    made = deltas(targets(kind))
    patched = with_lora(comfy, clip, lora_file(made), 0.8)
    expected, limit = reference(clip, made, 0.8), ROUNDED if kind == WRITTEN else EXACT
    full = encode(patched)
    assert error(full, expected) < limit
    assert error(full, before) > 0.1
    size = patched.patcher.model_size()
    for share in (0, 0.5, 1, 3):
        patched.patcher.detach()
        found = at_budget(patched, int(share * size))
        assert error(found, expected) < limit, share
        assert kind == WRITTEN or torch.equal(found, full), share
    patched.patcher.partially_unload(CPU, size // 2)
    assert error(at_budget(patched, 0), expected) < limit
    patched.patcher.detach()
    assert torch.equal(encode(clip), before)  # removed: to the last bit


@pytest.mark.parametrize("kind", ["bf16", "int8_row", "nvfp4_awq", "bf16 streamed"])
def test_clones_with_different_loras_take_turns(comfy, open_as, like_a_device, kind):  # noqa: F811
    clip = open_as(kind)
    first = with_lora(comfy, clip, lora_file(deltas(OPEN, 1)))
    second = with_lora(comfy, clip, lora_file(deltas(OPEN, 2)), 0.5)
    both = with_lora(comfy, first, lora_file(deltas(OPEN, 2)), 0.5)
    outputs = [encode(c) for c in (clip, first, second, both)]
    assert len({float(o.sum()) for o in outputs}) == 4
    for c, expected in ((second, outputs[2]), (clip, outputs[0]), (both, outputs[3]), (first, outputs[1])):
        assert torch.equal(encode(c), expected)
    assert torch.equal(encode(clip), outputs[0])


@pytest.mark.parametrize("kind", ["int8_row", "bf16 streamed"])
def test_loras_on_one_weight_add_up(comfy, open_as, kind):  # noqa: F811
    clip = open_as(kind, torch.float32)
    one, two = deltas(OPEN, 1), deltas(OPEN, 2)
    both = with_lora(comfy, with_lora(comfy, clip, lora_file(one)), lora_file(two))
    made = {
        layer: (torch.cat([one[layer][0], two[layer][0]], 1), torch.cat([one[layer][1], two[layer][1]]))
        for layer in OPEN
    }
    assert error(encode(both), reference(clip, made)) < EXACT


@pytest.mark.parametrize("kind", (WRITTEN, *KINDS))
def test_strength_zero_changes_no_bit(comfy, open_as, kind):  # noqa: F811
    clip = open_as(kind)
    before = encode(clip)
    still = with_lora(comfy, clip, lora_file(deltas((*OPEN, *SCALED))), 0.0)  # of an AWQ file too
    assert torch.equal(encode(still), before)
    assert not still.patcher.patches


@pytest.mark.parametrize("kind", ["bf16 streamed", "gguf streamed"])
@pytest.mark.parametrize("share", [0, 3])
def test_patches_of_a_vision_layer_and_its_bias(comfy, open_as, like_a_device, kind, share):  # noqa: F811
    clip, layer = open_as(kind, torch.float32), VISION[0]
    made, bias = deltas([layer]), torch.randn(3 * 144, generator=torch.Generator().manual_seed(3)) * 0.3
    patched = with_lora(comfy, clip, {**lora_file(made), f"{PREFIX}{layer}.diff_b": bias})
    expected = reference(clip, made, biases={released(layer).replace(".weight", ".bias"): bias}.items())
    assert error(expected, reference(clip, made)) > 1e-3
    found = at_budget(patched, share * patched.patcher.model_size())
    assert error(found, expected) < (ROUNDED if share else EXACT)  # loaded, ComfyUI rounds the bias as it is stored
    patched.patcher.detach()


@pytest.mark.parametrize("kind", ["int8_row", "nvfp4_awq", "bf16 streamed", "gguf"])
@pytest.mark.parametrize("share", [0, 3])
def test_patched_weights_meet_their_input_on_its_device(comfy, open_as, kind, share):  # noqa: F811
    clip = open_as(kind)
    patched = with_lora(comfy, clip, lora_file(deltas(targets(kind))))
    request, patcher = pictures(clip), patched.patcher
    patcher.load_device = META
    patcher.partially_load(META, share * patcher.model_size())
    assert patched.encoder.encode_presentation(request, device=META).hidden.device == META
    with OneDevice():
        patched.encoder.encode_presentation(request, device=META)
    patcher.detach()


# an AWQ file: norms carry the scales of what follows them


@pytest.mark.parametrize("kind", AWQ)
@pytest.mark.parametrize(
    "layer", (*SCALED, "model.layers.0.input_layernorm", "model.layers.2.post_attention_layernorm")
)
def test_lora_on_what_awq_norms_scale_is_refused_by_name(comfy, open_as, kind, layer):  # noqa: F811
    clip = open_as(kind)
    before = encode(clip)
    made = {f"{PREFIX}{layer}.diff": torch.zeros(shapes(tiny_config())[released(layer)])}
    message = (
        rf"AWQ file, got one on 1 of them \(first: qwen3vl_32b\.transformer\.{layer}\.weight\).*bf16, int8 or GGUF"
    )
    with pytest.raises(ValueError, match=message):
        with_lora(comfy, clip, {**made, **lora_file(deltas(OPEN))})
    assert torch.equal(encode(clip), before)


def test_lora_for_another_model_is_no_lora_on_an_awq_file(comfy, open_as):  # noqa: F811
    """A LoRA file brings the diffusion model's patches along; their names may look alike."""
    clip = open_as("nvfp4_awq")
    foreign = {"diffusion_model.layers.0.self_attn.q_proj.weight": ("diff", (torch.zeros(1),))}
    assert clip.clone().add_patches(foreign, 1.0) == []


@pytest.mark.parametrize("kind", ["bf16", "int8_row", "nvfp4_awq"])
def test_add_patches_tells_which_keys_it_took(open_as, kind):  # noqa: F811
    clip = open_as(kind)
    key = "qwen3vl_32b.transformer.model.layers.0.self_attn.o_proj.weight"
    patch = {key: ("diff", (torch.zeros(64, 512),)), "elsewhere.weight": ("diff", (torch.zeros(2),))}
    for strength in (1.0, 0.0):
        assert list(clip.clone().add_patches(patch, strength)) == [key]


@pytest.mark.parametrize("kind", ["bf16 streamed", "int8_row"])
def test_patch_that_sets_a_weight_counts_at_strength_zero_too(open_as, kind):  # noqa: F811
    clip = open_as(kind, torch.float32)
    key = "qwen3vl_32b.transformer.model.layers.0.self_attn.o_proj.weight"
    patched = clip.clone()
    patched.add_patches({key: ("set", (torch.zeros(64, 512),))}, 0.0)
    assert error(encode(patched), encode(clip)) > 0.01


# ComfyUI's nodes


@pytest.mark.parametrize("kind", ["int8_row", "nvfp4_awq", "bf16 streamed"])
def test_lora_loader_node(comfy, open_as, tmp_path: Path, monkeypatch, kind):  # noqa: F811
    made = deltas(OPEN)
    save_file({name: tensor.contiguous() for name, tensor in lora_file(made).items()}, tmp_path / "h3.safetensors")
    monkeypatch.setitem(comfy.folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], {".safetensors"}))
    clip = open_as(kind, torch.float32)
    _, patched = comfy.nodes.LoraLoader().load_lora(None, clip, "h3.safetensors", 1.0, 0.7)
    assert error(encode(patched), reference(clip, made, 0.7)) < EXACT
    assert type(patched) is type(clip)


@pytest.mark.parametrize("kind", ["int8_row", "nvfp4_awq", "bf16 streamed"])
def test_hooks_on_resting_weights_are_refused_by_name_and_leave_the_clip_usable(comfy, open_as, kind):  # noqa: F811
    clip = open_as(kind)
    before = encode(clip)
    hooks = comfy.hooks.create_hook_lora(lora=lora_file(deltas(OPEN)), strength_model=1.0, strength_clip=1.0)
    from comfy_extras.nodes_hooks import SetClipHooks

    (hooked,) = SetClipHooks().apply_hooks(clip, schedule_clip=False, apply_to_conds=True, hooks=hooks)
    with pytest.raises(ValueError, match=r"expected a LoRA without a hook on a packed or streamed .*o_proj"):
        hooked.encode_from_tokens_scheduled(hooked.tokenize("a fox"))
    assert torch.equal(encode(clip), before)
