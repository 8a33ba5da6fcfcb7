"""GGUF headers: read at real size in no time, complete to the byte, and every damage is a ValueError."""

from __future__ import annotations

import os
import random
import struct
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from h3te.encoder.checkpoint import gguf_file, gguf_reader
from h3te.encoder.checkpoint.gguf_file import read_gguf
from h3te_tests.checkpoint_files import released_config
from h3te_tests.gguf_files import write_sparse_gguf

VOCABULARY = 151_936


def write_small(path: Path, padding: bool = True, parts: int = 0) -> Path:
    """Two tensors and a few key-values."""
    writer = gguf.GGUFWriter(path, "qwen3vl")
    writer.add_uint32("qwen3vl.block_count", 64)
    writer.add_array("qwen3vl.rope.dimension_sections", [24, 20, 20, 0])
    writer.add_array("tokenizer.ggml.tokens", ["a", "bb", "ccc"])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 100)
    writer.add_array("nothing", [1, 2])
    writer.add_bool("h3te_demo", True)
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_tensor("one", np.arange(24, dtype=np.float32).reshape(4, 6))
    writer.add_tensor("two", np.zeros((3, 34), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not padding:
        os.truncate(path, path.stat().st_size - (-3 * 34) % 32)
    return path


@pytest.fixture(scope="module")
def real_file(tmp_path_factory) -> Path:
    """llama.cpp's layout at real size, vocabulary and merges included."""
    path = tmp_path_factory.mktemp("real") / "Qwen3-VL-32B-Q4_K_M.gguf"
    return write_sparse_gguf(path, "C", released_config(), vocabulary=VOCABULARY)


def test_tensors_have_torch_shapes_and_their_place_in_the_file(tmp_path):
    path = write_small(tmp_path / "a.gguf")
    one, two = read_gguf(path).tensors.values()
    assert (one.stored_name, one.dtype, one.shape, one.nbytes) == ("one", "F32", (4, 6), 96)
    assert (two.stored_name, two.dtype, two.shape, two.nbytes) == ("two", "Q8_0", (3, 32), 102)
    data = path.read_bytes()[one.offset : one.offset + one.nbytes]
    assert np.frombuffer(data, np.float32).tolist() == list(range(24))
    assert two.offset == one.offset + 96


def test_numbers_texts_and_short_lists_are_kept(tmp_path):
    assert read_gguf(write_small(tmp_path / "a.gguf")).values == {
        "general.architecture": "qwen3vl", "qwen3vl.block_count": 64, "nothing": [1, 2], "h3te_demo": True,
        "qwen3vl.rope.dimension_sections": [24, 20, 20, 0],
    }  # fmt: skip


def test_plain_reader_of_the_package_gives_the_same(tmp_path, monkeypatch):
    path = write_small(tmp_path / "a.gguf")
    quick = read_gguf(path)
    gguf_file._outcome.cache_clear()
    monkeypatch.setitem(gguf_reader._OVERRIDDEN, "_get_field_parts", ("self", "something new"))
    assert gguf_reader.reader_class() is gguf.GGUFReader
    assert read_gguf(path) == quick


def test_installed_package_has_the_insides_that_are_overridden():
    assert gguf_reader.reader_class() is gguf_reader.HeaderReader


def test_header_with_a_vocabulary_is_read_in_no_time(real_file):
    times = []
    for _ in range(3):
        gguf_file._outcome.cache_clear()
        start = time.perf_counter()
        header = read_gguf(real_file)
        times.append(time.perf_counter() - start)
    assert len(header.tensors) == 707
    assert header.values["qwen3vl.block_count"] == 64
    assert min(times) < 1  # measured: 0.09 s; the package's reader takes 8 s


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells what is open")
@pytest.mark.parametrize("damaged", [False, True])
def test_nothing_stays_open_or_mapped(tmp_path, damaged):
    path = write_small(tmp_path / "kept open.gguf")
    if damaged:
        os.truncate(path, 200)
    caught = None
    try:
        read_gguf(path)
    except ValueError as error:
        caught = error  # whoever keeps the error keeps no mapping
    assert (caught is not None) == damaged
    assert path.name not in Path("/proc/self/maps").read_text()
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if path.name in link]


def test_last_tensor_may_end_with_or_without_padding(tmp_path):
    padded, bare = write_small(tmp_path / "a.gguf"), write_small(tmp_path / "b.gguf", padding=False)
    assert padded.stat().st_size > bare.stat().st_size
    assert len(read_gguf(padded).tensors) == len(read_gguf(bare).tensors) == 2


@pytest.mark.parametrize(("change", "what"), [(-1, "The download is incomplete"), (-30, "The download is incomplete"),
                                              (26 + 1, "The file is damaged")])  # fmt: skip
def test_file_of_another_size_is_refused_with_both_numbers(tmp_path, change, what):
    path = write_small(tmp_path / "a.gguf", padding=False)
    size = path.stat().st_size
    os.truncate(path, size + change)
    with pytest.raises(ValueError, match=rf"expected {size + 26:,} bytes .* got {size + change:,}\. {what}"):
        read_gguf(path)


def test_incomplete_download_of_real_size_is_refused_with_both_numbers(tmp_path):
    path = write_sparse_gguf(tmp_path / "m.gguf", "A", released_config())
    size = path.stat().st_size
    os.truncate(path, 9_000_000_000)
    with pytest.raises(ValueError, match=rf"expected {size:,} bytes as its header says, got 9,000,000,000"):
        read_gguf(path)


def test_header_is_parsed_once_per_state_of_its_file(tmp_path, monkeypatch):
    """Good or bad: a vision file that is being downloaded is looked into for every model beside it."""
    good, bad, calls = write_small(tmp_path / "a.gguf"), tmp_path / "b.gguf", []
    bad.write_bytes(good.read_bytes()[:-40])
    parse = gguf_file._parse
    monkeypatch.setattr(gguf_file, "_parse", lambda path, size: calls.append(path) or parse(path, size))
    for _ in range(3):
        assert read_gguf(good) is read_gguf(good)
        with pytest.raises(ValueError, match="The download is incomplete"):
            read_gguf(bad)
    assert calls == [good, bad]
    os.utime(good, ns=(1, 1))
    bad.write_bytes(good.read_bytes())
    assert read_gguf(good).tensors.keys() == read_gguf(bad).tensors.keys()
    assert calls == [good, bad, good, bad]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are files here alone")
def test_pipes_devices_and_folders_are_never_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "device.gguf").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a FIFO"), ("folder", "a folder"), ("device", "a device")):
        with pytest.raises(
            ValueError, match=rf"{name}\.gguf: expected a file, got {kind}, which is never opened\. Choose"
        ):
            read_gguf(tmp_path / f"{name}.gguf")


def test_safetensors_file_is_told_by_its_name_too(tmp_path):
    path = tmp_path / "vision.safetensors"
    path.write_bytes(OTHERS["safetensors"][0])
    with pytest.raises(ValueError, match=r"expected a GGUF file, got a safetensors file\. Choose a \.gguf file\."):
        read_gguf(path)


START = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
OTHERS = {
    "empty": (b"", "got 0 bytes"),
    "cut short": (START[:20], "got 20 bytes that begin with b'GGUF'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs pointer"),
    "safetensors": ((400).to_bytes(8, "little") + b'{"a":{"dtype":"BF16"', "Rename it to end in .safetensors"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
    "pickle": (b"\x80\x04" + bytes(40), "of another kind"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "got a big-endian one"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "expected GGUF version 2 or 3, got 1"),
    "version 99": (b"GGUF" + struct.pack("<IQQ", 99, 1, 1), "expected GGUF version 2 or 3, got 99"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "1,152,921,504,606,846,976 tensors"),
    "values": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 40), "1,099,511,627,776 key-values"),
    "text": (START + struct.pack("<Q", 1 << 62) + bytes(99), "a text of 4,611,686,018,427,387,904 bytes"),
    "array": (START + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 50) + bytes(99), "an array of 1,125,899,906,842,624"),
    "array of arrays": (START + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 3) + bytes(99), "an array of 3 ARRAY"),
    "array beyond": (START + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 20) + bytes(99), "ends at byte 4,194,353"),
    "unknown type": (START + struct.pack("<Q1sI", 1, b"k", 77) + bytes(99), "77) is not a valid GGUFValueType"),
    "axes": (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 1 << 30) + bytes(999), "that break off"),
    "tensor type": (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 200, 0) + bytes(99), "200 is not"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_gguf_file_is_refused_by_what_it_is(name, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(OTHERS[name][0])
    with pytest.raises(ValueError) as caught:
        read_gguf(path)
    assert str(caught.value).startswith("model.gguf: expected ") and OTHERS[name][1] in str(caught.value)


def test_tensor_of_broken_blocks_and_overlapping_tensors_are_refused(tmp_path):
    def write(width: int, second: int) -> Path:
        one = struct.pack("<Q1sIQIQ", 1, b"a", 1, width, 8, 0)  # Q8_0
        two = struct.pack("<Q1sIQIQ", 1, b"b", 1, 32, 8, second)
        path = tmp_path / "m.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + one + two + bytes(500))
        return path

    with pytest.raises(ValueError, match=r"expected 'a' \(Q8_0 \[33\]\) to be whole blocks of 32 values"):
        read_gguf(write(33, 64))
    with pytest.raises(ValueError, match="expected tensors without overlap at multiples of 32 bytes, got 'b'"):
        read_gguf(write(64, 32))
    with pytest.raises(ValueError, match="expected tensors without overlap at multiples of 32 bytes, got 'b'"):
        read_gguf(write(32, 35))


def test_one_part_of_a_split_file_is_refused(tmp_path):
    path = write_small(tmp_path / "m-00001-of-00003.gguf", parts=3)
    with pytest.raises(ValueError, match=r"expected a whole GGUF file, got one of 3 parts.*llama-gguf-split --merge"):
        read_gguf(path)


def test_absent_package_is_named_with_what_to_install(tmp_path, monkeypatch):
    path = write_small(tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.delitem(sys.modules, gguf_reader.__name__)
    monkeypatch.delattr(sys.modules[gguf_file.__package__], "gguf_reader")
    with pytest.raises(RuntimeError, match=r"expected the Python package gguf, got none.*python -m pip install gguf"):
        read_gguf(path)


def test_damaged_headers_are_value_errors_soon(tmp_path, real_file):
    """Cut anywhere, or with bytes changed anywhere: refused, or read as what it then says, in bounded time."""
    chance, small = random.Random(7), write_small(tmp_path / "a.gguf").read_bytes()
    with real_file.open("rb") as file:
        large = file.read(9_000_000)
    path, slowest = tmp_path / "b.gguf", 0.0
    for round in range(300):
        whole = bytearray(large if round % 20 == 0 else small)
        if chance.random() < 0.3:
            del whole[chance.randrange(len(whole)) :]
        for _ in range(chance.randint(1, 4) if whole else 0):
            whole[chance.randrange(min(len(whole), 900))] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
        path.write_bytes(whole)
        start = time.perf_counter()
        try:
            read_gguf(path)
        except ValueError as error:
            assert str(error).startswith("b.gguf: expected ")
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < 5
