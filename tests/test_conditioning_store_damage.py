"""The conditioning store on a bad disk: damaged and foreign files, no space, no permission, links."""

from __future__ import annotations

import errno
import json
import os
import pickle
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from h3te.encoder.cache import disk_folder, entry_file
from h3te.encoder.cache.conditioning_store import ConditioningStore
from h3te.encoder.cache.identity import EncoderIdentity
from h3te_tests.store_entries import CONFIG, IDENTITY, disk_store, key, same, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

WHOLE = b"".join(entry_file.pack(key(1), IDENTITY.key, stored(1)))
OTHER = b"".join(entry_file.pack(key(2), IDENTITY.key, stored(2)))
HEADER = int.from_bytes(WHOLE[:8], "little")


def put(store: ConditioningStore, number: int = 1) -> bool:
    return store.put(key(number), stored(number), IDENTITY, CONFIG)


def flipped(place: int, bit: int = 0) -> bytes:
    return WHOLE[:place] + bytes((WHOLE[place] ^ 1 << bit,)) + WHOLE[place + 1 :]


def marked(rest: bytes) -> bytes:
    """A header that begins as the store's own."""
    header = entry_file._START + rest
    return len(header).to_bytes(8, "little") + header + bytes(100)


DAMAGED = {
    "empty": b"",
    "seven bytes": WHOLE[:7],
    "header cut": WHOLE[: HEADER // 2],
    "no data": WHOLE[: 8 + HEADER],
    "last byte missing": WHOLE[:-1],
    "a byte too many": WHOLE + b"\0",
    "bit in the length": flipped(0),
    "bit in the facts": flipped(WHOLE.index(b"prompt") + 1),
    "bit in the checksum": flipped(WHOLE.index(b"crc32") + 8),
    "bit in a shape": flipped(WHOLE.index(b'"shape":[3,8]') + 9),
    "bit in the padding": flipped(7 + HEADER),
    "bit in the ids": flipped(8 + HEADER),
    "bit in the hidden states": flipped(len(WHOLE) - 1, 7),
    "the entry of another key": OTHER,
    "foreign safetensors": save({"hidden": torch.zeros(3, 8)}),
    "foreign safetensors with our mark": marked(b'{}","crc32":""},"hidden":{}}'),
    "record without sizes": marked(b'{\\"version\\":1}","crc32":""}}'),
    "deep header": marked(b'","a":' + b"[" * 40_000),
    "deep record": marked(b"[" * 40_000 + b'","crc32":""}}'),
    "pickle": pickle.dumps(list(range(999))),
    "zip": b"PK\x03\x04" + bytes(500),
    "text": b"version https://git-lfs.github.com/spec/v1\n" * 20,
    "huge header": (1 << 40).to_bytes(8, "little") + b"{}" + bytes(100),
    "header beyond its limit": (entry_file.MAX_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(20_000_000),
    "zeros": bytes(len(WHOLE)),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_file_is_ignored_reported_once_and_replaced(content, tmp_path, caplog):
    path = tmp_path / f"{key(1)}.safetensors"
    path.write_bytes(content)
    store = disk_store(tmp_path)
    assert store.get(key(1)) is None and store.get(key(1)) is None
    assert caplog.text.count(f"expected {path.name} as this store wrote it, got ") == len(caplog.records) == 1
    assert put(store) and same(store.get(key(1))[0], stored(1))
    assert path.read_bytes() == WHOLE and len(caplog.records) == 1


@settings(max_examples=150)
@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_no_single_bit_goes_unnoticed(place, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("flip") / "entry"
    path.write_bytes(flipped(place, bit))
    with path.open("rb", buffering=0) as file, pytest.raises((entry_file.DamagedEntry, entry_file.OtherVersion)):
        entry_file.read_entry(file, key(1))


def test_damage_after_a_replacement_is_reported_again(tmp_path, caplog):
    store, path = disk_store(tmp_path), tmp_path / f"{key(1)}.safetensors"
    for _ in range(2):
        path.write_bytes(WHOLE[:-1])
        assert store.get(key(1)) is None
        put(store)
    assert len(caplog.records) == 2


def test_entry_of_another_release_is_not_used_and_no_damage(tmp_path, caplog):
    with mock.patch.object(entry_file, "VERSION", 2):
        put(disk_store(tmp_path))
        assert disk_store(tmp_path).get(key(1)) is not None
    store = disk_store(tmp_path)
    assert store.get(key(1)) is None and caplog.text == "" and store.requests(IDENTITY.key) == []
    assert put(store) and store.get(key(1)) is not None


def test_folder_under_the_name_of_an_entry_stays_and_memory_goes_on(tmp_path, caplog):
    blocked = tmp_path / f"{key(1)}.safetensors"
    blocked.mkdir()
    (blocked / "mine.txt").write_text("x")
    store = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    assert store.get(key(1)) is None and put(store) and put(store)
    assert store.get(key(1))[1] == "ram" and put(store, 2) and disk_store(tmp_path).get(key(2)) is not None
    store.clear()
    assert (blocked / "mine.txt").read_text() == "x"
    assert len(caplog.records) == 2  # of reading and of writing
    assert "got a link, a folder or a device" in caplog.text and "expected to write into" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_links_are_not_followed_and_not_deleted(tmp_path, caplog):
    outside, folder = tmp_path / "outside", tmp_path / "store"
    put(disk_store(outside))
    put(disk_store(folder), 2)
    target = outside / f"{key(1)}.safetensors"
    (folder / target.name).symlink_to(target)
    store = disk_store(folder)
    assert store.get(key(1)) is None and "got a link" in caplog.text
    store.clear()
    assert target.exists() and (folder / target.name).is_symlink()
    assert put(store) and not (folder / target.name).is_symlink()
    assert target.read_bytes() == WHOLE and store.get(key(1)) is not None


FOREIGN = {
    "model.safetensors": save({"a": torch.zeros(4)}),
    f"{key(7)}.safetensors": save({"a": torch.zeros(40_000)}),  # a hash as its name, as download sites give them
    f"{key(1)}.safetensors.bak": WHOLE,
    f"{key(1)}.json": b"{}",
    "notes.partial": b"x",
    f"identities/{key(8)}.json": b'{"version": 1}',
    "identities/notes.json": b"{}",
    f"below/{key(1)}.safetensors": WHOLE,
}


def test_foreign_files_are_never_deleted_nor_counted(tmp_path):
    for name, content in FOREIGN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (0, 0))
    store = disk_store(tmp_path, 3 * len(WHOLE))
    for number in (1, 2, 3, 4):
        put(store, number)
    assert [number for number in (1, 2, 3, 4) if store.get(key(number))] == [2, 3, 4]
    store.clear()
    left = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == FOREIGN


def test_unfinished_files_of_dead_writers_go_when_they_are_old(tmp_path):
    store = disk_store(tmp_path)
    put(store)
    names = [f"{key(2)}.safetensors.{number:016x}.partial" for number in range(2)]
    for name in names:
        (tmp_path / name).write_bytes(WHOLE)
    old = time.time() - disk_folder.PARTIAL_SECONDS - 1
    os.utime(tmp_path / names[0], (old, old))
    put(store, 3)
    assert [(tmp_path / name).exists() for name in names] == [False, True]


def failing(number: int):
    """A function that fails as the system would."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def test_full_disk_is_reported_once_and_memory_goes_on(tmp_path, caplog):
    store = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    put(store)
    with mock.patch("os.fsync", failing(errno.ENOSPC)):
        assert put(store, 2) and put(store, 3)
    assert [record.getMessage() for record in caplog.records] == [
        f"conditioning store: expected to write into {tmp_path}, got No space left on device. Free some space there, "
        "allow writing, or choose another folder; conditioning is kept in memory meanwhile."
    ]
    assert all(store.get(key(number))[1] == "ram" for number in (1, 2, 3))
    assert list(tmp_path.glob("*.partial")) == []
    assert disk_store(tmp_path).get(key(1)) is not None and disk_store(tmp_path).get(key(2)) is None
    assert put(store, 4) and disk_store(tmp_path).get(key(4)) is not None


def test_full_disk_keeps_the_older_answer_to_the_same_request(tmp_path):
    store = disk_store(tmp_path)
    put(store)
    with mock.patch("os.fsync", failing(errno.ENOSPC)):
        assert not store.put(key(1), stored(5), IDENTITY, CONFIG)
    assert same(store.get(key(1))[0], stored(1))


def test_folder_that_may_not_be_written_to_is_reported_once(tmp_path, caplog):
    put(disk_store(tmp_path))
    store, open_ = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6), Path.open

    def read_only(path, mode="r", *arguments, **options):
        return failing(errno.EROFS)() if "x" in mode else open_(path, mode, *arguments, **options)

    with mock.patch.object(Path, "open", read_only):
        assert put(store, 2) and put(store, 3) and store.get(key(1))[1] == "disk"
    assert len(caplog.records) == 1 and "allow writing" in caplog.text and store.get(key(3))[1] == "ram"


def test_folder_that_cannot_be_made_is_reported_once_for_reading_and_writing(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    store = ConditioningStore(ram_budget=10**6, folder=tmp_path / "file" / "store", disk_budget=10**6)
    for number in (1, 2):
        assert store.get(key(number)) is None and put(store, number) and store.get(key(number))[1] == "ram"
    assert store.disk_bytes() == 0 and [one.entries for one in store.identities()] == [2]
    store.clear()
    reasons = [record.getMessage().split(", got")[0] for record in caplog.records]
    assert len(set(reasons)) == len(reasons) and "expected to write into" in reasons[-1]


def test_file_that_cannot_be_read_is_reported_once(tmp_path, caplog):
    put(disk_store(tmp_path))
    put(disk_store(tmp_path), 2)
    store = disk_store(tmp_path)
    with mock.patch.object(Path, "open", failing(errno.EACCES)):
        assert store.get(key(1)) is None and store.get(key(2)) is None and store.requests(IDENTITY.key) == []
    assert len(caplog.records) == 1 and "Allow reading" in caplog.text and store.get(key(1)) is not None


def test_files_that_another_process_deletes_or_holds_are_passed_over(tmp_path):
    store = disk_store(tmp_path, 3 * len(WHOLE))
    for number in (1, 2, 3):
        put(store, number)
    unlink = Path.unlink

    def held(path, missing_ok=False):
        if path.name.startswith(key(1)) and path.suffix == ".safetensors":
            raise PermissionError(errno.EACCES, "in use")
        unlink(path)  # gone before the other one gets there
        unlink(path, missing_ok=missing_ok)

    with mock.patch.object(Path, "unlink", held):
        assert put(store, 4)
    assert [number for number in (1, 2, 3, 4) if store.get(key(number))] == [1, 3, 4]


def test_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path):
    store = disk_store(tmp_path)
    put(store)
    opened = store._disk.open(key(1))
    store.put(key(1), stored(5), IDENTITY, CONFIG)
    with opened:
        assert same(entry_file.read_entry(opened, key(1))[0], stored(1))


BAD_RECORDS = {
    "empty": b"",
    "no object": b"[]",
    "pickle": pickle.dumps({}),
    "deep": b"[" * 100_000,
    "large": b" " * 1_100_000 + b"{}",
    "another checksum": None,
}


@pytest.mark.parametrize("content", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_damaged_identity_is_ignored_reported_once_and_replaced(content, tmp_path, caplog):
    path = tmp_path / "identities" / f"{IDENTITY.key}.json"
    put(disk_store(tmp_path))
    path.write_bytes(path.read_bytes().replace(b"bfloat16", b"bfloat17") if content is None else content)
    store = disk_store(tmp_path)
    assert store.identities() == store.identities() == [] and len(caplog.records) == 1
    assert store.get(key(1)) is not None
    put(store)
    assert [one.identity for one in disk_store(tmp_path).identities()] == [IDENTITY]
    assert json.loads(path.read_bytes())["version"] == 1


def test_identity_of_other_numerics_or_fields_is_not_listed(tmp_path, caplog):
    old = EncoderIdentity("ab", "bf16", "bfloat16", 50, "official", "ours", numerics=0)
    disk_store(tmp_path).put(key(1), stored(1), old, CONFIG)
    assert disk_store(tmp_path).identities() == [] and caplog.text == ""
