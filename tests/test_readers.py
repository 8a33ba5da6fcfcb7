"""Three ways to the same weights: mapped, read into memory, or read from the file whenever they are needed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from h3te_tests.golden_cases import CASES, references
from h3te_tests.tiny_weights import tiny_config, tiny_weights

CASE = CASES["mixed_in_request_order"]
READERS = ("mmap", "read", "stream")
EMBEDDING = "model.language_model.embed_tokens.weight"
FIRST = "model.language_model.layers.0.mlp.down_proj.weight"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def folder(tiny_checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "text_encoder"))


def hidden(encoder) -> torch.Tensor:
    return encoder.encode(CASE["prompt"], references(CASE)).hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reader", READERS[1:])
def test_every_reader_gives_the_same_bits(load_small, folder, reader, dtype):
    expected = hidden(load_small(folder, dtype=dtype))
    encoder = load_small(folder, reader=reader, dtype=dtype)
    assert torch.equal(hidden(encoder), expected)
    assert torch.equal(hidden(encoder), expected)


@pytest.mark.parametrize("reader", READERS)
def test_weight_bytes_are_those_of_the_file_whatever_the_reader(load_small, folder, reader):
    encoder = load_small(folder, reader=reader)
    told = encoder.weight_bytes
    encoder.materialise()
    assert encoder.is_loaded
    assert encoder.weight_bytes == told == sum(stored.nbytes for stored in encoder.source.weights.values())


def test_unknown_reader_is_refused(load_small, folder):
    with pytest.raises(ValueError, match="expected reader to be one of mmap, read, stream, got 'fast'"):
        load_small(folder, reader="fast")


@pytest.mark.parametrize("reader", READERS)
@linux_only
def test_no_handle_stays_open(load_small, folder, reader):
    encoder = load_small(folder, reader=reader)
    hidden(encoder)
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [link for link in links if str(link.readlink()).startswith(str(folder))] == []


@linux_only
def test_only_the_mapping_reader_maps_files(load_small, folder):
    for reader in READERS:
        encoder = load_small(folder, reader=reader)
        hidden(encoder)
        mapped = str(folder) in Path("/proc/self/maps").read_text()
        assert mapped == (reader == "mmap"), reader
        del encoder


def test_streamed_weights_are_placeholders_that_hold_nothing(load_small, folder):
    encoder = load_small(folder, reader="stream")
    hidden(encoder)
    resting = [name for name in encoder.slots.names if encoder.slots.get(name).is_meta]
    assert {EMBEDDING, FIRST} <= set(resting)
    held = sum(t.nbytes for t in map(encoder.slots.get, encoder.slots.names) if not t.is_meta)
    assert held < 0.2 * encoder.weight_bytes
    assert not encoder.slots.missing()


def test_streaming_reads_only_the_rows_of_the_table_that_are_used(load_small, folder, monkeypatch):
    encoder, read = load_small(folder, reader="stream"), []
    encoder.materialise()
    files = encoder.source.files
    whole, rows = files.read, files.read_rows
    monkeypatch.setattr(files, "read", lambda entry, *a: read.append((entry.stored_name, None)) or whole(entry, *a))
    monkeypatch.setattr(
        files, "read_rows", lambda e, ids, n: read.append((e.stored_name, ids.tolist())) or rows(e, ids, n)
    )
    done = encoder.encode("a fox and a fox")
    table = [ids for name, ids in read if name == EMBEDDING]
    assert table == [sorted(set(done.token_ids.tolist()))]
    assert sum(name == FIRST for name, _ in read) == 1


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no hints on this system")
def test_streamed_file_that_is_deleted_is_explained_though_a_hint_comes_first(load_small, folder):
    encoder = load_small(folder, reader="stream")
    hidden(encoder)
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    encoder.source.files.expect(encoder.source.weights[FIRST].parts.values())
    with pytest.raises(RuntimeError, match="expected the file as it was when the text encoder was loaded, got none"):
        encoder.encode_ids(torch.tensor([1, 2]))


def test_streamed_file_that_changes_between_two_passes_is_refused(load_small, folder):
    encoder = load_small(folder, reader="stream")
    expected = hidden(encoder)
    shard = folder / "model-00001-of-00003.safetensors"
    aside = shard.rename(folder / "aside")
    shutil.copy(aside, shard)
    os.utime(shard, ns=(1, 1))
    with pytest.raises(RuntimeError, match=f"{shard.name}: expected the file as it was .*another or newer one"):
        hidden(encoder)
    aside.replace(shard)
    assert torch.equal(hidden(encoder), expected)


def test_reading_tells_its_bytes_within_a_tensor_and_stops_there(load_small, folder, monkeypatch):
    monkeypatch.setattr("h3te.encoder.checkpoint.files.BLOCK_BYTES", 1 << 20)
    calls = []

    class Stopped(Exception):
        pass

    def stop(done: int, total: int, what: str) -> None:
        calls.append(done)
        if len(calls) == 5:  # within the embedding, which is first
            raise Stopped

    encoder = load_small(folder, reader="read")
    with pytest.raises(Stopped):
        encoder.materialise(stop)
    assert calls == [(i + 1) << 20 for i in range(5)]
    assert EMBEDDING in encoder.slots.missing()
    encoder.materialise()
    assert torch.equal(hidden(encoder), hidden(load_small(folder)))


def test_a_streamed_encoder_moved_away_and_back_is_the_same(load_small, folder):
    encoder = load_small(folder, reader="stream")
    expected = hidden(encoder)
    encoder.to("meta")
    encoder.offload_to_cpu()
    assert torch.equal(hidden(encoder), expected)


def test_given_weights_replace_streamed_ones(load_small, folder):
    encoder = load_small(folder, reader="stream")
    expected = hidden(encoder)
    encoder.load_weights(tiny_weights(tiny_config()))
    (folder / "model-00001-of-00003.safetensors").unlink()
    assert torch.equal(hidden(encoder), expected)
