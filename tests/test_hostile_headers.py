"""Headers made to cost gigabytes or minutes, or to mean two things: refused early, in little memory, by one message."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from h3te.encoder import inspect_checkpoint
from h3te.encoder.checkpoint import gguf_file, plain_json
from h3te.encoder.checkpoint.glance import glance
from h3te.encoder.checkpoint.header import read_header
from h3te.encoder.parallel.protocol import EncodeRequest
from h3te_tests.checkpoint_files import stored, write_sparse
from h3te_tests.refused import refused
from h3te_tests.tiny_weights import tiny_config

EMPTY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def written(path: Path, text: bytes, data: bytes = b"") -> Path:
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that Python and numpy held at once meanwhile."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMBS = {  # made when they are needed
    "lists": lambda: b'{"a":[' + b"[]," * 33_000_000 + b"[]]}",
    "names": lambda: b"{" + b",".join(b'"%d":%b' % (i, EMPTY) for i in range(300_000)) + b"}",
    "one name again and again": lambda: b"{" + (b'"a":' + EMPTY + b",") * 1_900_000 + b'"b":' + EMPTY + b"}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_header_of_a_hundred_megabytes_is_not_made_into_objects(tmp_path, name):
    text = BOMBS[name]()
    path = written(tmp_path / "e.safetensors", text)
    said = []
    peak = peak_of(lambda: said.append(refused(path, "e.safetensors: expected", "more than 1,000,000 values")))
    assert peak < 2 * len(text) + 10_000_000
    assert glance(path) is False


def test_more_tensors_than_any_file_has_are_refused(tmp_path):
    text = b"{" + b",".join(b'"%d":%b' % (i, EMPTY) for i in range(65_537)) + b"}"
    path = written(tmp_path / "e.safetensors", text)
    refused(path, "e.safetensors: expected a header of at most 65,536 tensors, got 65,537. Choose another file.")


def test_config_of_escapes_within_a_header_is_not_parsed(tmp_path):
    """Commas that are written as escapes are counted when they are commas again."""
    config = '{"text_config":[' + "[]," * 2_000_000 + "[]]}"
    text = json.dumps({"__metadata__": {"config": config}}).replace(",", "\\u002c").encode()
    path = written(tmp_path / "e.safetensors", text)
    assert peak_of(lambda: inspect_checkpoint(path)) < 4 * len(text) + 20_000_000
    assert inspect_checkpoint(path).problems


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_file_beyond_the_limit_is_not_read(tmp_path, tiny_checkpoint, name):
    folder = tmp_path / "text_encoder"
    folder.mkdir()
    for path in tiny_checkpoint.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / name).unlink()
    with (folder / name).open("wb") as file:
        file.truncate(5_000_000_000)
    refused(folder, f"{name}: expected JSON of at most 16,000,000 bytes, got 5,000,000,000")


def test_json_file_of_too_many_values_is_not_made_into_objects(tmp_path, tiny_checkpoint):
    path = write_sparse(tmp_path / "e.safetensors", stored(tiny_config()))
    (tmp_path / "config.json").write_text('{"a":[' + "0," * 3_000_000 + "0]}")
    assert peak_of(lambda: inspect_checkpoint(path)) < 30_000_000


def test_values_up_to_the_limit_are_parsed():
    text = "[" + ",".join("0" * 1000) + "]"
    assert plain_json.parsed(text) == [0] * 1000
    assert len(plain_json.parsed(b"[" + b"0," * plain_json.MOST_VALUES + b"0]")) == plain_json.MOST_VALUES + 1
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        plain_json.parsed(b"[" + b"0," * (plain_json.MOST_VALUES + 1) + b"0]")


# what means two things

TWICE = {
    "a tensor": b'{"a":%b,"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}' % EMPTY,
    "the same": b'{"a":%b,"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":%b}' % (EMPTY, EMPTY),
    "metadata": b'{"__metadata__":{},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"__metadata__":{"a":"b"}}',
    "offsets": b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,4],"data_offsets":[0,8]}}',
    "a dtype, once in escapes": b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,8],"\\u0064type":"U8"}}',
    "a value of the metadata": b'{"__metadata__":{"config":"1","config":"2"},"a":%b}' % EMPTY,
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_key_that_stands_twice_is_refused(tmp_path, name):
    path = written(tmp_path / "e.safetensors", TWICE[name], bytes(8))
    text = refused(path, "e.safetensors: expected a safetensors header in JSON", "twice")
    assert text.isprintable()


def test_tensor_of_an_encoder_that_stands_twice_is_refused(tmp_path):
    """In a file that is complete to the byte, the second is what the first was."""
    path = write_sparse(tmp_path / "e.safetensors", stored(tiny_config()))
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + length].rstrip()
    name, fields = next(iter(json.loads(text).items()))
    written(path, text[:-1] + b', "' + name.encode() + b'": ' + json.dumps(fields).encode() + b"}", raw[8 + length :])
    refused(path, f"the key {name!r} twice")


def test_tensor_that_stands_twice_in_a_body_of_a_worker_is_refused():
    body = EncodeRequest(torch.arange(4), "a" * 64, "bfloat16", 50).to_bytes()
    length = int.from_bytes(body[:8], "little")
    header = body[8 : 8 + length].rstrip()
    fields = json.dumps(json.loads(header)["input_ids"]).encode()
    twice = header[:-1] + b',"input_ids":' + fields + b"}"
    with pytest.raises(ValueError, match=r"encode request: expected a header in JSON, .*the key 'input_ids' twice"):
        EncodeRequest.from_bytes(len(twice).to_bytes(8, "little") + twice + body[8 + length :])


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 10**30, 10**400], ids=lambda n: f"{len(str(n))} digits")
@pytest.mark.parametrize("place", ["shape", "data_offsets"])
def test_numbers_of_any_length_are_refused_at_once(tmp_path, number, place):
    fields = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]} | {
        place: [0, number] if place != "shape" else [number]
    }
    path = written(tmp_path / "e.safetensors", json.dumps({"a": fields}).encode(), bytes(8))
    assert len(refused(path, "e.safetensors: expected")) < 700


@pytest.mark.parametrize("offsets", [[0, 9], [8, 16], [2**62, 2**62 + 8], [1, 9]])
def test_offsets_out_of_the_file_are_refused_unread(tmp_path, offsets):
    fields = {"dtype": "U8", "shape": [offsets[1] - offsets[0]], "data_offsets": offsets}
    path = written(tmp_path / "e.safetensors", json.dumps({"a": fields}).encode(), bytes(8))
    with pytest.raises(ValueError, match=r"expected .* got"):
        read_header(path)


@pytest.mark.parametrize("length", [0, 1, 9, 2**31, 2**40, 2**63, 2**64 - 1])
def test_length_that_no_header_has_takes_no_memory(tmp_path, length):
    path = tmp_path / "e.safetensors"
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + b"{}")
        file.truncate(10_000_000_000)
    assert peak_of(lambda: refused(path, "e.safetensors: expected")) < 10_000_000


# GGUF


def gguf_of(path: Path, values: bytes, count: int, tensors: bytes = b"", tensor_count: int = 0) -> Path:
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensor_count, count) + values + tensors)
    return path


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def test_gguf_texts_are_bounded_together(tmp_path):
    """Each is allowed alone; all of them would be kept."""
    value = text(bytes(4_000_000))
    values = b"".join(text(b"key%d" % i) + struct.pack("<I", 8) + value for i in range(20))
    path = gguf_of(tmp_path / "e.gguf", values, 20)
    with pytest.raises(ValueError, match=r"e\.gguf: expected a GGUF header .*a text of 4,000,000 bytes"):
        gguf_file.read_gguf(path)


def test_gguf_arrays_of_texts_are_bounded_together(tmp_path):
    """A million empty texts each, which have to be passed one by one."""
    array = struct.pack("<IIQ", 9, 8, 1_000_000) + bytes(8_000_000)
    path = gguf_of(tmp_path / "e.gguf", b"".join(text(b"key%d" % i) + array for i in range(5)), 5)
    with pytest.raises(ValueError, match=r"e\.gguf: expected a GGUF header .*5,000,000 texts"):
        gguf_file.read_gguf(path)


def test_gguf_tensor_of_broken_blocks_says_what_it_has(tmp_path):
    """Found by fuzzing: a name of nothing and no axes, whose message had no end."""
    tensor = text(b"") + struct.pack("<IIQ", 0, 3, 0)
    path = gguf_of(tmp_path / "e.gguf", b"", 0, tensor, 1)
    with pytest.raises(ValueError, match=r"expected '' \(Q4_1 \[\]\) to be whole blocks of 32 values, got 1 values\."):
        gguf_file.read_gguf(path)
