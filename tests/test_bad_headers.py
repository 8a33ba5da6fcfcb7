"""What a header, an index and names may not hold, and what is no regular file: one clear error each, and at once."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from h3te.encoder import inspect_checkpoint
from h3te.encoder.checkpoint.catalog import open_catalog
from h3te_tests.checkpoint_files import INDEX, copy_sparse, stored, write_json, write_sparse
from h3te_tests.refused import FUZZ, JSON, SHARDS, refused, spoil_index
from h3te_tests.tiny_weights import TAP_LAYER, shapes, tiny_config
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def folder(tiny_checkpoint, tmp_path) -> Path:
    """A copy of the tiny checkpoint to be spoilt."""
    return copy_sparse(tiny_checkpoint, tmp_path / "text_encoder")


def header(**fields) -> bytes:
    text = json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


BAD_HEADERS = {
    "metadata is no object": {"__metadata__": [1]},
    "tensor is no object": {"a": 5},
    "no offsets": {"a": {"dtype": "BF16", "shape": [4]}},
    "shape is no list": {"a": {"dtype": "BF16", "shape": 4, "data_offsets": [0, 8]}},
    "offsets are words": {"a": {"dtype": "BF16", "shape": [4], "data_offsets": ["x", "y"]}},
    "infinite shape": {"a": {"dtype": "BF16", "shape": [float("inf")], "data_offsets": [0, 8]}},
    "shape against offsets": {"a": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 8]}},
    "offsets in reverse": {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [8, 0]}},
    "a gap": {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}},
    "an overlap": {n: {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]} for n in "ab"},
    "an overlap and a gap of the same size": {
        "a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}, "d": {"dtype": "BF16", "shape": [1],
        "data_offsets": [6, 8]}, "b": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 4]},
        "c": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 4]},
    },
    "shape of fractions": {"a": {"dtype": "BF16", "shape": [4.0], "data_offsets": [0, 8]}},
    "shape of words": {"a": {"dtype": "BF16", "shape": ["4"], "data_offsets": [0, 8]}},
    "shape of truths": {"a": {"dtype": "U8", "shape": [True, 8], "data_offsets": [0, 8]}},
    "offsets of fractions": {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0.0, 8.9]}},
    "negative shape": {"a": {"dtype": "BF16", "shape": [-2, -2], "data_offsets": [0, 8]}},
    "three offsets": {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8, 8]}},
    "more axes than any": {"a": {"dtype": "BF16", "shape": [1 << 62] * 999, "data_offsets": [0, 8]}},
    "dtype is no text": {"a": {"dtype": ["BF16"], "shape": [4], "data_offsets": [0, 8]}},
    "dtype of control characters": {"a": {"dtype": "\x1b[2J", "shape": [4], "data_offsets": [0, 8]}},
    "metadata of numbers": {"__metadata__": {"config": 5}},
    "metadata of objects": {"__metadata__": {"config": {"text_config": 1}}},
    "a name with control characters": {"\x1b[31m\n": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
    "a name of half a letter": {"\ud800": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
    "a name without an end": {"a" * 501: {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_header_that_contradicts_itself(tmp_path, name):
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(header(**BAD_HEADERS[name]))
    text = refused(path, "encoder.safetensors: expected", "eplace")
    assert text.isprintable()
    assert len(text) < 700


ABSURD = {
    "layers": "model.layers.9999999.x", "blocks": "visual.blocks.20000.x",
    "mergers": "visual.deepstack_merger_list.100.x",
    "no number that Python reads": f"visual.blocks.{'9' * 400}.x", "at the end": "model.layers.1000",
}  # fmt: skip


@pytest.mark.parametrize("what", ABSURD)
def test_number_that_no_model_has_is_refused_at_once(tmp_path, folder, what):
    said = ("at most 1,000 layers, 1,000 vision blocks and 100 DeepStack mergers", ABSURD[what])
    tensors = stored(tiny_config()) | {ABSURD[what]: ("BF16", (0,))}
    start = time.thread_time()
    text = refused(write_sparse(tmp_path / "e.safetensors", tensors), *said)
    spoil_index(folder, **{ABSURD[what].replace("model.", "model.language_model."): SHARDS[0]})
    refused(folder, said[0])
    assert time.thread_time() - start < 5
    assert len(text) < 1000


@pytest.mark.parametrize(("section", "changes"), [
    ("text_config", {"num_hidden_layers": 1001}), ("vision_config", {"depth": 10**12 - 1}),
    ("vision_config", {"depth": 900, "deepstack_visual_indexes": list(range(101))}),
    ("text_config", {"vocab_size": 10**9}), ("text_config", {"intermediate_size": 10**11}),
    ("vision_config", {"patch_size": 10**6}), ("vision_config", {"num_position_embeddings": 10**10}),
])  # fmt: skip
def test_config_of_numbers_that_no_model_has_is_refused_at_once(folder, section, changes):
    config = tiny_config()
    config[section] |= changes
    write_json(folder / "config.json", config)
    start = time.thread_time()
    text = refused(folder, "EncoderConfig: expected", "at most")
    assert time.thread_time() - start < 5
    assert len(text) < 1000


def test_message_does_not_list_all_that_a_file_holds(folder):
    config = tiny_config()
    config["vision_config"]["deepstack_visual_indexes"] = [7] * 900_000
    write_json(folder / "config.json", config)
    assert len(refused(folder, "EncoderConfig: expected")) < 1000


def test_tensor_of_two_names_is_refused(tmp_path):
    name = "visual.blocks.0.norm1.weight"
    tensors = stored(tiny_config())
    path = write_sparse(tmp_path / "e.safetensors", tensors | {f"model.{name}": tensors[name]})
    refused(path, f"got two: {name} of e.safetensors and model.{name} of e.safetensors", "Nothing says which is right")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", ["e.safetensors", "e.gguf"])
def test_pipe_is_not_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, f"{name}: expected a file, got a FIFO")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", [*SHARDS[:2], INDEX, "config.json"])
def test_pipe_in_a_folder_is_not_opened(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, f"{name}: expected a file, got a FIFO")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices")
def test_device_is_not_opened(tmp_path):
    (tmp_path / "e.safetensors").symlink_to("/dev/zero")
    refused(tmp_path / "e.safetensors", "got a device", "never opened")


def test_folder_named_as_a_file_is_told(tmp_path):
    (tmp_path / "e.safetensors").mkdir()
    refused(tmp_path, "e.safetensors: expected a file, got a folder")


@pytest.mark.skipif(sys.platform == "win32", reason="no such names")
def test_message_holds_nothing_that_a_terminal_obeys(tmp_path):
    path = tmp_path / "\x1b[31mred\n.safetensors"
    path.write_bytes(b"")
    text = refused(path, "\\x1b[31mred\\n.safetensors: expected", "got 0 bytes")
    assert text.isprintable()
    write_sparse(path, stored(tiny_config()) | {"model.layers.1.self_attn.o_proj.bias": ("BF16", (64,))})
    assert refused(path, "\\x1b[31mred\\n.safetensors: expected", "1 unknown").isprintable()


# an index


def test_index_names_with_control_characters_are_refused(folder):
    spoil_index(folder, **{"model.language_model.layers.0.\x1b[31m": SHARDS[0]})
    assert refused(folder, "printable tensor names", r"layers.0.\x1b[31m").isprintable()


def test_stray_copy_in_another_shard_is_not_used(folder):
    """The index says where a tensor lies, whatever other shards hold."""
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    index = json.loads((folder / INDEX).read_text())
    places = index["weight_map"]
    for other in {*places.values()} - {places[name]}:
        names = [n for n, file in places.items() if file == other]
        write_sparse(folder / other, {n: ("BF16", shapes(tiny_config())[n]) for n in [*names, name]})
    assert open_catalog(folder, TAP_LAYER).entries[name].file.name == places[name]


def test_tensor_that_the_index_lacks_in_two_shards_is_refused(folder):
    name = "model.language_model.layers.0.mlp.up_proj.weight_scale"
    known = shapes(tiny_config())
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    for shard in {*places.values()}:
        names = [n for n, file in places.items() if file == shard]
        write_sparse(folder / shard, {n: ("BF16", known[n]) for n in names} | {name: ("F32", ())})
    refused(folder, f"expected one tensor {name}, got two: ", *SHARDS[:2])


# whatever a header may hold

NAMES = st.sampled_from([
    "__metadata__", "model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight", "model.layers.²",
    "model.layers.0.self_attn.q_proj.weight", "visual.pos_embed.weight", "visual.patch_embed.proj.weight",
    "model.language_model.layers.0.mlp.down_proj.weight",
])  # fmt: skip
ENTRY = st.fixed_dictionaries({
    "dtype": st.sampled_from(["BF16", "U8", "F4"]), "shape": st.lists(st.integers(0, 4), max_size=5),
    "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
})  # fmt: skip


@FUZZ
@given(tensors=st.dictionaries(NAMES, ENTRY | JSON, max_size=6), tail=st.binary(max_size=64))
def test_no_header_makes_the_doctor_raise(tmp_path, tensors, tail):
    text = json.dumps(tensors).encode()
    path = tmp_path / "e.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + tail)
    assert inspect_checkpoint(path).problems


@FUZZ
@given(metadata=JSON | st.dictionaries(st.sampled_from(["config", "_quantization_metadata", "h3te_demo"]), JSON
                                       | JSON.map(json.dumps)), shape=JSON, dtype=JSON)  # fmt: skip
def test_no_metadata_makes_the_doctor_raise(tmp_path, metadata, shape, dtype):
    tensors = {name: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for name in stored(tiny_config())}
    inspect_checkpoint(write_header(tmp_path, tensors | {"__metadata__": metadata}))
    tensors["model.layers.0.mlp.up_proj.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    assert inspect_checkpoint(write_header(tmp_path, tensors)).problems


def write_header(folder: Path, tensors: dict) -> Path:
    text = json.dumps(tensors).encode()
    (folder / "e.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return folder / "e.safetensors"


@FUZZ
@given(config=JSON, key=st.sampled_from(["text_config", "vision_config", "quantization_config", "h3te_demo"]))
def test_no_config_beside_makes_the_doctor_raise(tmp_path, config, key):
    if not (tmp_path / "e.safetensors").exists():
        write_sparse(tmp_path / "e.safetensors", stored(tiny_config()))
    write_json(tmp_path / "config.json", tiny_config() | {key: config})
    assert inspect_checkpoint(tmp_path / "e.safetensors").problems
