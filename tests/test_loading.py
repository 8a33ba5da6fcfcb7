"""Opening checkpoints: every layout gives the same encoder, only needed files are opened, nothing is copied."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from h3te.encoder import EncoderConfig, load_encoder
from h3te_tests.checkpoint_files import (
    INDEX,
    bare_name,
    opened_files,
    released_config,
    write_json,
    write_single,
    write_sparse,
    write_sparse_folder,
)
from h3te_tests.checkpoint_files import stored as stored_shapes
from h3te_tests.golden_cases import CASES, expected, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config, tiny_weights, write_tiny_checkpoint
from safetensors.torch import load_file, save_file

CASE = CASES["mixed_in_request_order"]
NEEDED = [n for n in shapes(tiny_config()) if not n.startswith(("lm_head", "model.language_model.layers.5."))]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and inotify")


@pytest.fixture
def load(tokenizer_folder):
    """`load_encoder` at tiny size, with the tokenizer that is not beside these checkpoints."""
    return lambda path, **options: load_encoder(
        path, **{"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, **options}
    )


@pytest.fixture(scope="module")
def reference(tiny_checkpoint, tokenizer_folder) -> torch.Tensor:
    encoder = load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    return hidden(encoder)


def hidden(encoder) -> torch.Tensor:
    return encoder.encode(CASE["prompt"], references(CASE)).hidden


# layouts


@pytest.mark.parametrize("below", [".", "text_encoder", "FL2VA/text_encoder", "Ref2VA/text_encoder"])
def test_official_folder_or_its_parents(load, reference, tiny_checkpoint, tmp_path, below):
    shutil.copytree(tiny_checkpoint, tmp_path / below, dirs_exist_ok=True)
    encoder = load(tmp_path)
    assert torch.equal(hidden(encoder), reference)
    assert encoder.source.catalog.path == tmp_path / below


@pytest.mark.parametrize("tap", ["5", None, 5.0, True])
def test_tap_that_is_no_whole_number_is_refused(load, tiny_checkpoint, tap):
    with pytest.raises(ValueError, match="expected tap_layer as a whole number, got "):
        load(tiny_checkpoint, tap_layer=tap)


def test_paths_may_be_strings(load, tiny_checkpoint):
    assert load(str(tiny_checkpoint)).source.catalog.path == tiny_checkpoint


@pytest.mark.parametrize("config", ["in metadata", "beside", "from shapes"])
def test_single_file_with_comfyui_names(load, reference, tmp_path, config):
    text = json.dumps(tiny_config())
    metadata = {"config": text, "format": "pt"} if config == "in metadata" else None
    path = write_single(tmp_path / "encoder.safetensors", NEEDED, metadata=metadata)
    if config == "beside":
        (tmp_path / "config.json").write_text(text)
    assert torch.equal(hidden(load(path)), reference)


@pytest.mark.parametrize("rename", [str, bare_name], ids=["official names", "bare names"])
def test_single_file_with_other_names(load, reference, tmp_path, rename):
    assert torch.equal(hidden(load(write_single(tmp_path / "e.safetensors", NEEDED, rename=rename))), reference)


def test_single_file_without_final_norm_in_its_folder(load, reference, tmp_path):
    names = [n for n in NEEDED if n != "model.language_model.norm.weight"]
    write_single(tmp_path / "anything.safetensors", names)
    assert torch.equal(hidden(load(tmp_path)), reference)


def test_config_of_another_model_beside_a_single_file_is_passed_over(load, reference, tmp_path, caplog):
    write_json(tmp_path / "config.json", released_config())
    path = write_single(tmp_path / "e.safetensors", NEEDED)
    assert torch.equal(hidden(load(path)), reference)
    assert "config.json beside it is another model's" in caplog.text


def test_rope_parameters_of_transformers_5_are_the_same_config(load, reference, tiny_checkpoint, tmp_path):
    config = tiny_config()
    text = config["text_config"]
    text["rope_parameters"] = {**text.pop("rope_scaling"), "rope_theta": text.pop("rope_theta")}
    shutil.copytree(tiny_checkpoint, tmp_path, dirs_exist_ok=True)
    write_json(tmp_path / "config.json", config)
    assert torch.equal(hidden(load(tmp_path)), reference)


def test_config_as_transformers_writes_it_is_the_same_config():
    config_class = pytest.importorskip("transformers.models.qwen3_vl").Qwen3VLConfig
    for config in (tiny_config(), released_config()):
        written = config_class(**json.loads(json.dumps(config))).to_dict()
        assert EncoderConfig.from_dict(written) == EncoderConfig.from_dict(config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_keep_the_type_they_are_stored_in(load, tmp_path, dtype):
    encoder = load(write_single(tmp_path / "e.safetensors", NEEDED, dtype=dtype))
    bytes_told = encoder.weight_bytes
    encoder.materialise()
    assert {encoder.slots.get(name).dtype for name in encoder.slots.names} == {dtype}
    assert encoder.weight_bytes == bytes_told
    got = encoder.encode("A red fox runs through fresh snow at dawn.").hidden[0]
    assert relative_error(got, expected()["text.hidden"]) < 2e-3


def test_file_without_vision_serves_text_and_names_what_to_add_at_the_first_picture(load, tmp_path):
    encoder = load(write_single(tmp_path / "e.safetensors", [n for n in NEEDED if ".visual." not in n]))
    got = encoder.encode("A red fox runs through fresh snow at dawn.").hidden[0]
    assert relative_error(got, expected()["text.hidden"]) < 2e-4
    with pytest.raises(ValueError, match=r"no vision tower \(visual\.\*\)\. Load a file that holds it"):
        hidden(encoder)


def test_tokenizer_is_found_beside_the_checkpoint(tiny_checkpoint, tokenizer_folder, tmp_path, reference):
    shutil.copytree(tiny_checkpoint, tmp_path / "text_encoder")
    shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    encoder = load_encoder(tmp_path, dtype=torch.float32, tap_layer=TAP_LAYER)
    assert torch.equal(hidden(encoder), reference)


def test_headers_of_any_length_are_read(load, tmp_path):
    # 640 bytes of header begin with the two bytes of a pickle
    tensors = {f"layers.{i}.mlp.down_proj.weight": ("BF16", (1,)) for i in range(5)}
    for padding in range(400):
        path = write_sparse(tmp_path / "e.safetensors", tensors, metadata={"note": "x" * padding})
        if path.read_bytes()[:2] == b"\x80\x02":
            break
    else:
        pytest.fail("no padding gave the length")
    with pytest.raises(ValueError, match=r"expected the tensor .*embed_tokens"):
        load(path)


# only what is needed


@linux_only
def test_unneeded_shards_are_never_opened(load, tiny_checkpoint):
    needed = {f"model-0000{i}-of-00003.safetensors" for i in (1, 2)}
    with opened_files(tiny_checkpoint) as names:
        encoder = load(tiny_checkpoint)
    assert names == {*needed, "config.json", INDEX}
    with opened_files(tiny_checkpoint) as names:
        hidden(encoder)
    assert names == needed
    assert {path.name for path in encoder.source.opened} == needed
    assert [path.name for path in encoder.source.catalog.files_unneeded] == ["model-00003-of-00003.safetensors"]


def test_unneeded_shards_need_not_exist(load, reference, tiny_checkpoint, tmp_path):
    shutil.copytree(tiny_checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    assert torch.equal(hidden(load(tmp_path)), reference)


def test_a_lower_tap_needs_fewer_files(load, tmp_path):
    write_tiny_checkpoint(tmp_path, shards=6)
    low, high = load(tmp_path, tap_layer=1), load(tmp_path)
    assert set(low.source.catalog.files_needed) < set(high.source.catalog.files_needed)
    low.materialise()
    assert sorted(low.source.opened) == sorted(low.source.catalog.files_needed)


def test_weights_come_at_first_use(load, tiny_checkpoint):
    encoder = load(tiny_checkpoint)
    assert not encoder.is_loaded
    assert encoder.source.opened == []
    assert all(encoder.slots.get(name).is_meta for name in encoder.slots.names)
    encoder.encode("A fox.")
    assert encoder.is_loaded
    opened = list(encoder.source.opened)
    assert len(opened) == len(set(opened)) == 2
    encoder.encode("Another.")
    assert encoder.source.opened == opened


def test_load_to_device_and_materialise_load_the_same(load, tiny_checkpoint, reference):
    first, second = load(tiny_checkpoint), load(tiny_checkpoint)
    first.load_to_device()
    second.materialise()
    assert first.is_loaded
    assert second.is_loaded
    assert torch.equal(hidden(first), reference)
    assert torch.equal(hidden(second), reference)


def test_materialise_counts_bytes_and_can_be_stopped_and_resumed(load, tiny_checkpoint, reference):
    class Stopped(Exception):
        pass

    def stop(done: int, total: int, what: str) -> None:
        if done > total / 2:
            raise Stopped

    encoder, calls = load(tiny_checkpoint), []
    with pytest.raises(Stopped):
        encoder.materialise(stop)
    assert not encoder.is_loaded
    left = sum(encoder.slots.get(name).nbytes for name in encoder.slots.missing())
    encoder.materialise(lambda *call: calls.append(call))
    assert calls[-1] == (left, left, "weights")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert torch.equal(hidden(encoder), reference)


def spoil_shard(shard: Path, how: str) -> None:
    tensors = load_file(shard)
    name = "model.language_model.layers.0.mlp.down_proj.weight"
    shard.rename(shard.with_suffix(".aside"))
    if how == "cut":
        shard.write_bytes(shard.with_suffix(".aside").read_bytes()[:1000])
    elif how == "other type":
        save_file(tensors | {name: tensors[name].float()}, shard)
    elif how == "other values":
        save_file(tensors | {name: tensors[name] * 2}, shard)


@pytest.mark.parametrize("how", ["gone", "cut", "other type", "other values"])
def test_file_that_changed_between_loading_and_first_use_is_refused(load, reference, tiny_checkpoint, tmp_path, how):
    folder = tmp_path / "text_encoder"
    shutil.copytree(tiny_checkpoint, folder)
    encoder, shard = load(folder), folder / "model-00001-of-00003.safetensors"
    spoil_shard(shard, how)
    said = f"{shard.name}: expected the file as it was when the text encoder was loaded, got "
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said + ".*load the text encoder again"):
            encoder.encode("A fox.")
    shard.with_suffix(".aside").replace(shard)
    assert torch.equal(hidden(encoder), reference)


def test_an_encoder_that_was_moved_before_its_weights_came_loads_them(load, tiny_checkpoint, reference):
    encoder = load(tiny_checkpoint)
    encoder.to("cpu").to(torch.bfloat16).float().eval()
    assert not encoder.is_loaded
    assert torch.equal(hidden(encoder), reference)


# nothing is copied


def mapped_file(address: int) -> str | None:
    """The file whose mapping holds this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = [*line.split(maxsplit=5), ""][:6]
        start, stop = (int(part, 16) for part in span.split("-"))
        if start <= address < stop:
            return name
    return None


@linux_only
def test_tensors_are_views_of_the_mapped_files(load, tiny_checkpoint):
    encoder = load(tiny_checkpoint)
    encoder.load_to_device()
    for name in encoder.slots.names:
        entry = encoder.source.catalog.entries[name]
        assert mapped_file(encoder.slots.get(name).data_ptr()) == str(entry.file.resolve()), name


@linux_only
def test_loading_and_encoding_take_no_private_memory_for_weights(tokenizer_folder, tmp_path):
    config = tiny_config(hidden_size=768, intermediate_size=2048)
    config["vision_config"]["out_hidden_size"] = 768
    path = write_sparse(tmp_path / "e.safetensors", stored_shapes(config), metadata={"config": json.dumps(config)})
    encoder = load_encoder(path, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    encoder.tokenizer.encode("warm")
    before = private_bytes()
    encoder.load_to_device()
    encoder.encode("A red fox.")
    encoder.offload_to_cpu()
    assert encoder.weight_bytes > 250e6
    assert private_bytes() - before < 0.15 * encoder.weight_bytes


def private_bytes() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_a_folder_of_real_size_opens_without_its_data(tmp_path, tokenizer_folder):
    folder = write_sparse_folder(tmp_path / "text_encoder", released_config())
    encoder = load_encoder(folder, tokenizer=tokenizer_folder)
    assert encoder.tap_layer == 50
    assert encoder.weight_bytes == 51_506_191_840
    assert len(encoder.slots.names) == 902
    assert not encoder.is_loaded


def test_weights_of_the_recipe_are_those_of_the_files(load, tiny_checkpoint):
    encoder = load(tiny_checkpoint)
    encoder.materialise()
    given = dict(tiny_weights())
    assert all(torch.equal(encoder.slots.get(name), given[name]) for name in encoder.slots.names)
