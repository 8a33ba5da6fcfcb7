"""Generated packed checkpoints are what the real files are: names, types, markers, bytes; and they hold the weights."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import packed_files
import packed_kinds
import pytest
import torch
from h3te.encoder.packing import Packing, unpack
from h3te.encoder.packing.fp8 import BlockFp8, Fp8
from h3te.encoder.packing.int8 import Int8
from h3te.encoder.packing.nvfp4 import Nvfp4
from h3te_tests.checkpoint_files import INDEX, released_config
from h3te_tests.tiny_weights import shapes, tiny_config, tiny_weights, write_tiny_checkpoint
from packed_files import KINDS, Source, planned, write_packed
from quantise import convrot_group
from safetensors.torch import load_file

TAP = 5
SAMPLES = Path(__file__).resolve().parent / "goldens" / "quant"
LAYER = "model.language_model.layers.3."
LINEARS = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
SINGLE = [name for name, kind in KINDS.items() if not kind.whole]
PACKED = [name for name, kind in KINDS.items() if kind.served and kind.linear]
ROUNDING = {"nvfp4": 0.12, "nvfp4_awq": 0.16, "fp8_e5m2": 0.06}  # others 0.03


@pytest.fixture(scope="module")
def config() -> dict:
    return tiny_config(vocab_size=512)


@pytest.fixture(scope="module")
def source(tmp_path_factory, config) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("source") / "text_encoder", config)


@pytest.fixture(scope="module")
def weights(config) -> dict[str, torch.Tensor]:
    return dict(tiny_weights(config))


@pytest.fixture(scope="module")
def written(tmp_path_factory, source):
    """kind -> its checkpoint, written once."""
    folder, made = tmp_path_factory.mktemp("packed"), {}

    def checkpoint(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_packed(source, folder / f"{kind}.safetensors", kind, tap=TAP)
        return made[kind]

    return checkpoint


def tensors(path: Path) -> dict[str, torch.Tensor]:
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def header(file: Path) -> dict:
    with file.open("rb") as opened:
        return json.loads(opened.read(int.from_bytes(opened.read(8), "little")))


def packing_of(kind: str, shape: tuple[int, int]) -> Packing:
    if kind.startswith("nvfp4"):
        return Nvfp4(shape)
    if kind.startswith("int8"):
        group = convrot_group(shape[1]) if kind == "int8_convrot" else 0
        return Int8(shape, per_row=kind != "int8_tensor", group=group)
    if kind == "hf_block_fp8":
        return BlockFp8(shape)
    if kind == "fp8_legacy":
        return Fp8(shape, scale_shape=(1,), scale_name="scale_weight")
    return Fp8(shape, torch.float8_e5m2 if kind == "fp8_e5m2" else torch.float8_e4m3fn)


def parts_of(held: dict[str, torch.Tensor], layer: str) -> dict[str, torch.Tensor]:
    return {name[len(layer) + 1 :]: tensor for name, tensor in held.items() if name.startswith(layer + ".")}


@pytest.mark.parametrize(
    ("kind", "payload", "count"),
    [
        ("bf16", 51_506_191_840, 902),
        ("nvfp4_awq", 15_686_911_143, 902 + 2 + 3 * 350 + 100),
        ("int8_convrot", 27_141_161_040, 902 + 2 * 350),
    ],
)
def test_real_size_plan_has_the_released_file_s_bytes(kind, payload, count):
    likes = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in released_shapes().items()}
    plan = planned(Source(likes, likes.get), kind)
    assert sum(tensor.numel() * tensor.element_size() for tensor in plan.values()) == payload
    assert len(plan) == count


def released_shapes() -> dict[str, tuple[int, ...]]:
    return shapes(released_config())


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("linear", LINEARS)
def test_every_linear_holds_its_weight(kind, linear, written, weights):
    held, name = tensors(written(kind)), LAYER + linear
    layer = name if KINDS[kind].official else packed_kinds.comfyui_name(name)
    theirs = weights[name + ".weight"].float()
    parts = parts_of(held, layer)
    ours = unpack(packing_of(kind, tuple(theirs.shape)), parts, torch.float32)
    if kind == "nvfp4_awq":
        plain = float((ours - theirs).norm() / theirs.norm())
        ours = ours * input_factor(held, weights, linear, parts)
        assert plain > 0.2
    assert float((ours - theirs).norm() / theirs.norm()) < ROUNDING.get(kind, 0.03)


def input_factor(held, weights, linear: str, parts) -> torch.Tensor:
    """What the linear's input is multiplied by: beside it, or in the norm before it."""
    if linear.endswith(("o_proj", "down_proj")):
        return parts["pre_quant_scale"].float()
    assert "pre_quant_scale" not in parts
    norm = f"{LAYER}{'input' if 'attn' in linear else 'post_attention'}_layernorm.weight"
    return held[packed_kinds.comfyui_name(norm)].float() / weights[norm].float()


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_not_a_linear_is_as_released(kind, written, weights):
    held = tensors(written(kind))
    for name, weight in weights.items():
        stored = name if KINDS[kind].official else packed_kinds.comfyui_name(name)
        folded = kind == "nvfp4_awq" and name.endswith("layernorm.weight")
        embedding = kind == "nvfp4_awq" and name == packed_kinds.EMBEDDING
        if stored in held and not packed_kinds.LINEAR.match(name) and not folded and not embedding:
            assert torch.equal(held[stored], weight), name


def test_awq_file_holds_the_embedding_in_int8_rows(written, weights):
    parts = parts_of(tensors(written("nvfp4_awq")), "model.embed_tokens")
    theirs = weights[packed_kinds.EMBEDDING].float()
    ours = unpack(Int8(tuple(theirs.shape)), parts, torch.float32)
    assert float((ours - theirs).norm() / theirs.norm()) < 0.01
    assert bytes(parts["comfy_quant"].tolist()) == b'{"format": "int8_tensorwise"}'


@pytest.mark.parametrize("kind", SINGLE)
def test_single_file_holds_the_layers_below_the_tap_and_no_final_norm(kind, written, config):
    names = header(written(kind)).keys() - {"__metadata__"}
    layers = {name.split(".layers.")[1].split(".")[0] for name in names if ".layers." in name}
    assert layers == {str(layer) for layer in range(TAP)}
    assert not any(
        "lm_head" in name or name.endswith(("model.norm.weight", "language_model.norm.weight")) for name in names
    )
    assert any("visual." in name for name in names) == (kind != "lightx2v_fp8")
    assert any("language_model" in name for name in names) == (kind == "lightx2v_fp8")


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        ("nvfp4", "nvfp4"), ("nvfp4_awq", "nvfp4_awq"), ("int8_row", "int8_tensorwise_rowwise"),
        ("int8_tensor", "int8_tensorwise_scalar"), ("fp8", "fp8_scaled_comfy_quant"),
        ("fp8_header", "fp8_scaled_header_meta"), ("fp8_legacy", "fp8_scaled_old"), ("hf_block_fp8", "hf_block_fp8"),
        ("int8_convrot", "int8_convrot"), ("int4_convrot", "int4_convrot"), ("w4a8", "w4a8"), ("mxfp8", "mxfp8"),
    ],
)  # fmt: skip
def test_linear_is_announced_as_in_the_sample(kind, sample, written):
    """The same tensors of the same types and ranks, the same marker; only convrot's group follows the width."""
    theirs = load_file(SAMPLES / f"{sample}.safetensors")
    theirs = parts_of(theirs, "model.layers.0.mlp.down_proj")
    layer = packed_kinds.comfyui_name(LAYER + "mlp.down_proj")
    ours = parts_of(tensors(written(kind)), LAYER + "mlp.down_proj" if KINDS[kind].official else layer)
    assert {n: (t.dtype, t.ndim) for n, t in ours.items()} == {n: (t.dtype, t.ndim) for n, t in theirs.items()}
    if "comfy_quant" in theirs:
        marker = json.loads(bytes(ours["comfy_quant"].tolist()))
        if kind == "int8_convrot":
            marker["convrot_groupsize"] = {16: 256}[marker["convrot_groupsize"]]  # 160 columns
        assert json.dumps(marker).encode() == bytes(theirs["comfy_quant"].tolist())


def test_header_kind_names_each_linear_in_the_metadata(written):
    found = json.loads(header(written("fp8_header"))["__metadata__"]["_quantization_metadata"])
    assert len(found["layers"]) == TAP * len(LINEARS)
    assert found["layers"]["model.layers.3.mlp.down_proj"] == {"format": "float8_e4m3fn"}
    assert not any(name.endswith("comfy_quant") for name in header(written("fp8_header")))


def test_legacy_kind_carries_scaled_fp8(written):
    held = tensors(written("fp8_legacy"))
    assert held["scaled_fp8"].dtype == torch.float8_e4m3fn
    assert held["model.layers.3.mlp.down_proj.scale_input"].tolist() == [1.0]


def test_block_fp8_folder_holds_everything_and_its_config(written, config, source):
    folder = written("hf_block_fp8")
    found = json.loads((folder / "config.json").read_text())
    assert found.pop("quantization_config")["weight_block_size"] == [128, 128]
    assert found == json.loads((source / "config.json").read_text()) == config
    held = {name: file.name for file in folder.glob("*.safetensors") for name in header(file) if name != "__metadata__"}
    assert json.loads((folder / INDEX).read_text())["weight_map"] == held
    assert shapes(config).keys() <= held.keys()


@pytest.mark.parametrize("kind", ["nvfp4_awq", "int8_convrot", "fp8_legacy"])
def test_same_source_gives_the_same_bytes(kind, written, config, tmp_path):
    pairs = ((name, lambda weight=weight: weight) for name, weight in tiny_weights(config))
    again = write_packed(pairs, tmp_path / "again.safetensors", kind, tap=TAP, config=config)
    assert again.read_bytes() == written(kind).read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["again.safetensors"]


def test_config_is_in_the_header_at_a_width_that_shapes_cannot_explain(written, config, tmp_path):
    found = json.loads(header(written("nvfp4"))["__metadata__"]["config"])
    assert found["text_config"] == {**config["text_config"], "num_hidden_layers": TAP}
    demo = {**config, "h3te_demo": True, "h3te_demo_note": "meaningless"}
    marked = write_packed(tiny_weights(config), tmp_path / "demo.safetensors", "fp8", tap=2, config=demo)
    assert header(marked)["__metadata__"]["h3te_demo"] == "true"
    wide = {**config, "text_config": {**config["text_config"], "hidden_size": 5120}}
    silent = write_packed(tiny_weights(config), tmp_path / "wide.safetensors", "fp8", tap=2, config=wide)
    assert "__metadata__" not in header(silent)


def test_wide_types_stand_first_so_that_every_tensor_is_aligned(written):
    entries = header(written("nvfp4_awq"))
    size = {"F32": 4, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}
    assert all(e["data_offsets"][0] % size[e["dtype"]] == 0 for n, e in entries.items() if n != "__metadata__")


def test_one_weight_is_in_memory_at_a_time(config, tmp_path):
    alive: list[weakref.ref] = []

    def getter(name: str, shape: tuple[int, ...]):
        def read() -> torch.Tensor:
            assert sum(ref() is not None for ref in alive) <= 1, "weights pile up"
            weight = torch.ones(shape, dtype=torch.bfloat16)
            alive.append(weakref.ref(weight))
            return weight

        return read

    pairs = {name: getter(name, shape) for name, shape in shapes(config).items()}
    write_packed(pairs, tmp_path / "x.safetensors", "nvfp4_awq", tap=TAP, config=config)
    assert len(alive) > len(pairs)


def test_unknown_kind_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match=r"packed_files: expected one of bf16, .*, got 'int3'\. Choose one of these"):
        write_packed(source, tmp_path / "x", "int3")


def test_source_without_decoder_layers_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected tensors model.language_model.layers.\*, got nothing\. Give a"):
        write_packed(tmp_path, tmp_path / "x", "fp8")
    with pytest.raises(ValueError, match=r"expected tensors model.language_model.layers.\*, got model.norm.weight"):
        write_packed({"model.norm.weight": torch.ones(4)}, tmp_path / "x", "fp8")


def test_folder_with_files_is_refused_and_kept(source, tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(ValueError, match=r"expected no folder or an empty one, got files in .*Choose another"):
        write_packed(source, tmp_path, "hf_block_fp8")
    assert (tmp_path / "config.json").read_text() == "mine"


def test_command_line_says_what_it_did_and_what_went_wrong(source, written, tmp_path, capsys):
    target = tmp_path / "made.safetensors"
    assert packed_files.main([str(source), str(target), "--kind", "nvfp4", "--tap", str(TAP)]) == 0
    assert "nvfp4 checkpoint written" in capsys.readouterr().out
    assert target.read_bytes() == written("nvfp4").read_bytes()
    assert packed_files.main([str(tmp_path / "none"), str(target), "--kind", "fp8"]) == 1
    assert "expected tensors model.language_model.layers.*" in capsys.readouterr().err
