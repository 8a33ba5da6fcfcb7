"""Packed formats that are refused, each with a message that names what came, where, and what to do: formats that are
never opened, weights without their scale or marker, mixtures that contradict themselves. At real width over holes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from h3te.encoder import inspect_checkpoint, load_encoder
from h3te_tests.checkpoint_files import released_config, stored, write_sparse, write_sparse_folder
from h3te_tests.packed_headers import PACKED, Tensors, block_fp8_folder, linears, write_packed

TAP = 8  # layers are alike: eight are as good as fifty, and faster
CONFIG = released_config(layers=TAP)
DOWN, GATE = "model.layers.7.mlp.down_proj", "model.layers.7.mlp.gate_proj"
EMBEDDING = "model.embed_tokens"
SERVED_INSTEAD = "Use the nvfp4_awq, int8_convrot or bf16 file"


def problem(tmp_path: Path, tensors: Tensors, *parts: str) -> str:
    """The one problem, which holds all `parts`; the loader says it too, and the doctor never raises."""
    path = write_packed(tmp_path / "e.safetensors", tensors)
    (text,) = inspect_checkpoint(path, TAP).problems
    for part in ("expected", "got", *parts):
        assert part in text, text
    with pytest.raises(ValueError, match="expected") as raised:
        load_encoder(path, tap_layer=TAP)
    assert str(raised.value) == text
    return text


# refused by name

REFUSED = {
    "mxfp8": "got mxfp8 (56 tensors: ", "int4_convrot": "got int4 convrot (convrot_w4a4) (56 tensors: ",
    "w4a8": "got w4a8 (asym_w4a8_int8) (56 tensors: ",
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_format_that_is_never_opened_is_refused_by_name(tmp_path, kind):
    tensors = PACKED[kind](CONFIG)
    problem(tmp_path, tensors, "expected nvfp4, int8, fp8, GGUF", REFUSED[kind], "of layers 0 to 7", SERVED_INSTEAD)


@pytest.mark.parametrize("kind", ["mxfp8", "w4a8"])
def test_format_that_is_never_opened_is_refused_without_its_marker_too(tmp_path, kind):
    problem(tmp_path, PACKED[kind](CONFIG).without(".comfy_quant"), REFUSED[kind], SERVED_INSTEAD)


def test_unknown_marker_is_refused_by_name(tmp_path):
    tensors = PACKED["fp8"](CONFIG).mark(DOWN, format="float7")
    problem(tmp_path, tensors, "got the unknown format 'float7' (1 tensor: mlp.down_proj of layer 7)", SERVED_INSTEAD)


def renamed_weights(parts: dict) -> Tensors:
    """Each linear's weight replaced by `parts` {what stands behind its name: dtype}."""
    tensors = {n: t for n, t in stored(CONFIG).items() if not n.endswith("_proj.weight")}
    tensors |= {f"{layer}.{part}": (dtype, (64, 8)) for layer in linears(CONFIG) for part, dtype in parts.items()}
    return Tensors(tensors)


OTHER_TOOLS = {
    "AWQ or GPTQ": {"qweight": "I32", "qzeros": "I32", "scales": "F16"},
    "GPTQ": {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"},
    "bitsandbytes": {"weight": "U8", "weight.absmax": "U8", "weight.quant_state.bitsandbytes__nf4": "U8"},
    "bitsandbytes weights (a tensor named *.SCB)": {"weight": "I8", "SCB": "F32"},
    "compressed-tensors": {"weight_packed": "I32", "weight_shape": "I64"},
}


@pytest.mark.parametrize("name", OTHER_TOOLS)
def test_another_tools_format_is_refused_by_name(tmp_path, name):
    path = write_packed(tmp_path / "e.safetensors", renamed_weights(OTHER_TOOLS[name]))
    text = inspect_checkpoint(path, TAP).problems[0]
    assert f"expected nvfp4, int8, fp8, GGUF, bf16, fp16 or fp32 weights, got {name}" in text
    assert SERVED_INSTEAD in text
    with pytest.raises(ValueError, match=name.split(" (")[0]):
        load_encoder(path, tap_layer=TAP)


@pytest.mark.parametrize(
    ("method", "label"), [("awq", "AWQ"), ("gptq", "GPTQ"), ("bitsandbytes", "bitsandbytes"), ("torchao", "torchao")]
)
def test_config_names_the_format_of_another_tool(tmp_path, method, label):
    folder = write_sparse_folder(tmp_path / "a", CONFIG | {"quantization_config": {"quant_method": method}})
    assert inspect_checkpoint(folder, TAP).problems == ()  # plain weights, whatever a config left over says
    folder = block_fp8_folder(tmp_path / "b", CONFIG, {"quant_method": method})
    assert f"got {label} weights (config.json says so)" in inspect_checkpoint(folder, TAP).problems[0]


def test_lightx2v_is_refused_by_name(tmp_path):
    tensors = {}
    for name, (dtype, shape) in stored(CONFIG, rename=str).items():
        tensors[name] = (dtype, shape)
        if name.endswith("_proj.weight"):
            tensors |= {name: ("F8_E4M3", shape), name + "_scale": ("F32", (shape[0], 1))}
    tensors = {name: t for name, t in tensors.items() if not name.startswith("model.visual.")}
    path = write_sparse(tmp_path / "qwen3vl.safetensors", tensors)
    (text,) = inspect_checkpoint(path, TAP).problems
    assert "got LightX2V's fp8 (a scale a row, no marker, no vision tower)" in text
    assert SERVED_INSTEAD in text
    with pytest.raises(ValueError, match="LightX2V"):
        load_encoder(path, tap_layer=TAP)


# never a packed weight without its scale

LOST_SCALES = [
    ("fp8", "weight_scale"), ("fp8_metadata", "weight_scale"), ("fp8_legacy", "scale_weight"),
    ("int8_convrot", "weight_scale"), ("nvfp4", "weight_scale"), ("nvfp4_awq", "weight_scale_2"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "scale"), LOST_SCALES)
def test_packed_weight_without_its_scale_is_refused(tmp_path, kind, scale):
    tensors = PACKED[kind](CONFIG).without(f"{DOWN}.{scale}")
    problem(tmp_path, tensors, f"got no {scale} (1 tensor: mlp.down_proj of layer 7)", "Without it the weights mean")


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2", "fp8_blocks", "int8_row", "nvfp4"])
def test_packed_weight_without_marker_and_scale_is_refused(tmp_path, kind):
    scales = ("weight_scale", "weight_scale_2", "weight_scale_inv", "comfy_quant")
    tensors = PACKED[kind](CONFIG).without(*(f"{layer}.{scale}" for layer in (DOWN, GATE) for scale in scales))
    problem(tmp_path, tensors, "got weights without one (2 tensors: mlp.down_proj, mlp.gate_proj of layer 7)")


@pytest.mark.parametrize("kind", ["fp8", "fp8_row", "int8_convrot", "int8_tensor", "nvfp4_awq"])
def test_packed_weight_that_nothing_announces_is_refused(tmp_path, kind):
    tensors = PACKED[kind](CONFIG).without(DOWN + ".comfy_quant")
    problem(tmp_path, tensors, "and no marker (1 tensor: mlp.down_proj of layer 7)", "Nothing says how to read them")


AWQ = "expected pre_quant_scale beside each nvfp4 "


@pytest.mark.parametrize(("lost", "where"), [
    ([DOWN], "1 tensor: mlp.down_proj of layer 7"),
    ([f"model.layers.{i}.self_attn.o_proj" for i in range(8)], "8 tensors: self_attn.o_proj of layers 0 to 7"),
])  # fmt: skip
def test_awq_weight_without_the_scale_that_others_have_is_refused(tmp_path, lost, where):
    tensors = PACKED["nvfp4_awq"](CONFIG).without(*(f"{layer}.pre_quant_scale" for layer in lost))
    problem(
        tmp_path, tensors, f"{AWQ}o_proj or down_proj, as beside others of them, got none ({where})", "something else"
    )


def test_awq_scale_of_one_gate_alone_is_refused(tmp_path):
    tensors = PACKED["nvfp4"](CONFIG).with_tensors(**{f"{GATE}.pre_quant_scale": ("BF16", (5120,))})
    problem(tmp_path, tensors, AWQ + "gate_proj", "7 tensors: mlp.gate_proj of layers 0 to 6")


def test_awq_scales_may_differ_between_packings(tmp_path):
    tensors = PACKED["nvfp4_awq"](CONFIG)
    tensors = tensors.without(*(f"{DOWN}.{part}" for part in ("pre_quant_scale", "weight_scale", "weight_scale_2")))
    tensors = tensors.with_tensors(
        **{f"{DOWN}.weight": ("I8", (5120, 25600)), f"{DOWN}.weight_scale": ("F32", (5120, 1))}
    ).mark(DOWN, format="int8_tensorwise")
    path = write_packed(tmp_path / "e.safetensors", tensors)
    assert inspect_checkpoint(path, TAP).problems == ()


@pytest.mark.parametrize(("kind", "name"), [("fp8", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2"), ("nvfp4", "nvfp4")])
def test_rotation_that_nothing_undoes_is_refused(tmp_path, kind, name):
    tensors = PACKED[kind](CONFIG).mark(DOWN, format=name, convrot=True)
    problem(tmp_path, tensors, f"got rotated {name} (convrot) (1 tensor: mlp.down_proj of layer 7)", SERVED_INSTEAD)


def test_config_of_another_format_beside_a_good_file_changes_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "awq"}}))
    path = write_packed(tmp_path / "e.safetensors", PACKED["int8_convrot"](CONFIG))
    assert inspect_checkpoint(path, TAP).problems == ()


def test_scalar_named_as_a_weight_is_told(tmp_path):
    tensors = {n: t for n, t in stored(CONFIG, rename=str).items() if not n.startswith("model.visual.")}
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    tensors |= {name: ("F8_E4M3", ()), name + "_scale": ("F32", ())}
    assert inspect_checkpoint(write_sparse(tmp_path / "qwen3vl.safetensors", tensors), TAP).problems


def test_token_table_without_its_scale_is_refused(tmp_path):
    tensors = PACKED["nvfp4_awq"](CONFIG).without(EMBEDDING + ".weight_scale")
    problem(tmp_path, tensors, "got no weight_scale (1 tensor: embed_tokens)")


# mixtures that contradict themselves

CONTRADICTIONS = {
    "scale of another type": ("fp8", {f"{DOWN}.weight_scale": ("BF16", ())}, "got BF16 []"),
    "scale of another shape": ("int8_row", {f"{DOWN}.weight_scale": ("F32", (25600, 1))}, "got F32 [25600, 1]"),
    "too few scales": ("nvfp4", {f"{DOWN}.weight_scale": ("F8_E4M3", (5120, 800))}, "got F8_E4M3 [5120, 800]"),
    "weight of another shape": ("nvfp4", {f"{DOWN}.weight": ("U8", (5120, 25600))}, "got U8 [5120, 25600]"),
    "weight of another type": ("fp8", {f"{DOWN}.weight": ("I8", (5120, 25600))}, "got I8 [5120, 25600]"),
    "marker beside a plain weight": ("fp8", {f"{DOWN}.weight": ("BF16", (5120, 25600))}, "got bf16 ones"),
    "scale beside a plain weight": ("bf16", {f"{DOWN}.weight_scale": ("F32", ())}, "got weight_scale beside them"),
    "input scale beside a plain weight": ("bf16", {f"{DOWN}.pre_quant_scale": ("BF16", (25600,))}, "beside them"),
    "a scale too many": ("int8_row", {f"{DOWN}.weight_scale_2": ("F32", ())}, "got weight_scale_2 too"),
    "input scale of another shape": ("nvfp4", {f"{DOWN}.pre_quant_scale": ("BF16", (5120,))}, "got BF16 [5120]"),
    "input scale of the table": ("nvfp4_awq", {f"{EMBEDDING}.pre_quant_scale": ("BF16", (5120,))}, "got one with it"),
    "a packed norm": ("fp8", {"model.layers.7.input_layernorm.weight": ("I8", (5120,))}, "got I8 (1 tensor"),
    "a packed bias": ("fp8", {"visual.blocks.3.attn.qkv.bias": ("F8_E4M3", (3456,))}, "qkv.bias of vision block 3"),
    "a packed position table": ("fp8", {"visual.pos_embed.weight": ("I8", (2304, 1152))}, "visual.pos_embed"),
    "a type of its own": ("bf16", {f"{DOWN}.weight": ("F8_E8M0", (5120, 25600))}, "got weights without one"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_contradiction_is_refused(tmp_path, what):
    kind, changes, part = CONTRADICTIONS[what]
    problem(tmp_path, PACKED[kind](CONFIG).with_tensors(**changes), part)


def test_table_whose_rows_cannot_be_looked_up_is_refused(tmp_path):
    tensors = PACKED["nvfp4"](CONFIG)
    table = {
        ".weight": ("U8", (151936, 2560)),
        ".weight_scale": ("F8_E4M3", (151936, 320)),
        ".weight_scale_2": ("F32", ()),
    }
    tensors = tensors.with_tensors(**{EMBEDDING + part: t for part, t in table.items()})
    tensors = replace(tensors, metadata={"config": json.dumps(CONFIG)})  # without it the table would tell the width
    problem(tmp_path, tensors.mark(EMBEDDING, format="nvfp4"), "expected a token table in int8", "got nvfp4")


@pytest.mark.parametrize("group", [0, 8, 3, -1, "a", None, 6400])
def test_rotation_of_an_unknown_kind_is_refused(tmp_path, group):
    tensors = PACKED["int8_row"](CONFIG).mark(DOWN, format="int8_tensorwise", convrot=True, convrot_groupsize=group)
    problem(tmp_path, tensors, "mlp.down_proj of layer 7")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"5", b'{"convrot": true}', b'{"format": 7}', b"\xff\0", b"[" * 9999]
)
def test_marker_that_cannot_be_read_is_refused(tmp_path, text):
    tensors, name = PACKED["fp8"](CONFIG), DOWN + ".comfy_quant"
    tensors = tensors.with_tensors(**{name: ("U8", (len(text),))})
    problem(tmp_path, replace(tensors, contents=tensors.contents | {name: text}), "got one that cannot be read")


def test_marker_of_another_type_or_size_is_not_read(tmp_path):
    for other in (("F32", (9,)), ("U8", (1 << 20,))):
        tensors = PACKED["fp8"](CONFIG)
        text = problem(tmp_path, tensors.with_tensors(**{DOWN + ".comfy_quant": other}), "got one that cannot be read")
        assert "mlp.down_proj of layer 7" in text


@pytest.mark.parametrize("value", ["", "{", "[]", '{"layers": 5}', "[" * 9999])
def test_metadata_that_cannot_be_read_is_told(tmp_path, value):
    tensors = replace(PACKED["fp8_metadata"](CONFIG), metadata={"_quantization_metadata": value})
    report = inspect_checkpoint(write_packed(tmp_path / "e.safetensors", tensors), TAP)
    assert "expected JSON with layers in the header's _quantization_metadata" in report.problems[0]


def test_metadata_about_layers_that_are_not_there_is_ignored(tmp_path):
    text = json.dumps({"layers": {f"model.layers.{i}.mlp.down_proj": {"format": "nvfp4"} for i in range(8, 64)}})
    tensors = Tensors(stored(CONFIG), metadata={"_quantization_metadata": text})
    assert inspect_checkpoint(write_packed(tmp_path / "e.safetensors", tensors), TAP).problems == ()


def test_unknown_tensors_beside_packed_ones_are_refused(tmp_path):
    tensors = PACKED["fp8"](CONFIG).with_tensors(**{f"{DOWN}.zero_point": ("F32", ())})
    problem(tmp_path, tensors, "got 1 unknown: model.language_model.layers.7.mlp.down_proj.zero_point")


def test_marker_beside_a_weight_goes_before_the_headers_metadata(tmp_path):
    tensors = PACKED["fp8_metadata"](CONFIG).mark(DOWN, format="mxfp8")
    problem(tmp_path, tensors, "got mxfp8 (1 tensor: mlp.down_proj of layer 7)")
