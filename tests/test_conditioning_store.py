"""The conditioning store: what goes in comes out, the least recently used goes first, one folder for several."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import pytest
import torch
from h3te.encoder.cache.conditioning_store import ConditioningStore, StoredConditioning
from h3te.encoder.cache.entry_file import pack
from h3te.encoder.cache.identity import EncoderIdentity
from h3te.encoder.cache.identity_records import config_values
from h3te.encoder.config import EncoderConfig
from h3te_tests.store_entries import CONFIG, IDENTITY, disk_store, key, large, run, same, start, stored
from h3te_tests.tiny_weights import tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

ENTRY_BYTES = stored(0).nbytes
FILE_BYTES = sum(map(len, pack(key(1), IDENTITY.key, stored(1))))


def put(store: ConditioningStore, *numbers: int, identity: EncoderIdentity = IDENTITY) -> bool:
    kept = [store.put(key(number), stored(number), identity, CONFIG) for number in numbers]
    return all(kept)


def held(store: ConditioningStore, numbers) -> list[int]:
    """Which of them are stored; asking in this order also uses them in it."""
    return [number for number in numbers if store.get(key(number)) is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_entry_comes_back_to_the_bit_from_memory_and_from_disk(dtype, tmp_path):
    given_, store = stored(1, dtype=dtype), ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    assert store.get(key(1)) is None
    assert store.put(key(1), given_, IDENTITY, CONFIG)
    again = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    places = [(one.get(key(1)), place) for one, place in ((store, "ram"), (again, "disk"), (again, "ram"))]
    assert [found[1] for found, _ in places] == [place for _, place in places]
    assert all(same(found[0], given_) and found[0].hidden.dtype == dtype for found, _ in places)


def test_entry_of_the_real_size_comes_back_to_the_bit_from_disk(tmp_path):
    given_ = stored(1, 2000, 5120)
    disk_store(tmp_path).put(key(1), given_, IDENTITY, CONFIG)
    found, place = disk_store(tmp_path).get(key(1))
    assert place == "disk" and same(found, given_)


def test_file_is_one_that_the_safetensors_package_reads(tmp_path):
    put(disk_store(tmp_path), 1)
    with safe_open(tmp_path / f"{key(1)}.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["hidden", "token_ids", "token_tags"]
        assert file.get_tensor("hidden").equal(stored(1).hidden)
        assert '"prompt": "1"' in file.metadata()["h3te_conditioning"]


def test_what_is_stored_is_a_copy_that_holds_no_larger_tensor(tmp_path):
    whole = torch.ones(1, 100, 8)
    store = ConditioningStore(ram_budget=10**6)
    ids = torch.arange(2)
    store.put(key(1), StoredConditioning(whole[0, :2], ids, ids, {}), IDENTITY, CONFIG)
    whole.zero_()
    hidden = store.get(key(1))[0].hidden
    assert hidden.eq(1).all() and hidden.untyped_storage().nbytes() == 2 * 8 * 4


def test_texts_of_any_kind_are_facts(tmp_path):
    facts = {"prompt": 'ñ "quoted" \\ \ud800 \x00 雪', "parts": [{"name": "Picture 1", "tokens": 3}], "seconds": 1.5}
    given_ = StoredConditioning(stored(1).hidden, stored(1).token_tags, stored(1).token_ids, facts)
    disk_store(tmp_path).put(key(1), given_, IDENTITY, CONFIG)
    assert disk_store(tmp_path).get(key(1))[0].facts == facts


def test_store_without_folder_and_budget_keeps_nothing():
    store = ConditioningStore(ram_budget=0)
    assert not put(store, 1)
    assert store.get(key(1)) is None and store.ram_bytes == store.disk_bytes() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nothing_that_is_not_finite_is_stored(bad, tmp_path, caplog):
    spoilt, store = stored(1), ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    spoilt.hidden[2, 5] = bad
    assert store.put(key(1), spoilt, IDENTITY, CONFIG) is False
    assert store.get(key(1)) is None and list(tmp_path.iterdir()) == [] and "NaN or infinity" in caplog.text


HIDDEN, NUMBERS = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("hidden", "tags", "ids", "facts", "said"),
    [
        (HIDDEN[None], NUMBERS, NUMBERS, {}, r"hidden as bfloat16 or float32 \[S, D\], got torch.float32 \[1, 2, 8\]"),
        (HIDDEN.half(), NUMBERS, NUMBERS, {}, r"got torch.float16 \[2, 8\]"),
        (HIDDEN[:0], NUMBERS[:0], NUMBERS[:0], {}, r"got torch.float32 \[0, 8\]"),
        (HIDDEN, NUMBERS[:1], NUMBERS, {}, r"token_tags as int64 \[2\], got torch.int64 \[1\]"),
        (HIDDEN, NUMBERS, NUMBERS.int(), {}, r"token_ids as int64 \[2\], got torch.int32 \[2\]"),
        (HIDDEN, NUMBERS, NUMBERS, {"a": object()}, "facts of JSON values"),
        (HIDDEN, NUMBERS, NUMBERS, {"a": float("nan")}, "facts of JSON values"),
        (HIDDEN, NUMBERS, NUMBERS, {"a": "x" * 5_000_000}, "facts of at most 4,000,000 bytes, got 5,000,0"),
    ],
)
def test_what_is_no_conditioning_is_refused(hidden, tags, ids, facts, said):
    with pytest.raises(ValueError, match=said):
        ConditioningStore(ram_budget=10**6).put(key(1), StoredConditioning(hidden, tags, ids, facts), IDENTITY, CONFIG)


@pytest.mark.parametrize("wrong", ["../" + key(1)[3:], key(1)[:-1], key(1).upper(), "", None])
def test_key_of_another_form_is_refused(wrong, tmp_path):
    store = disk_store(tmp_path)
    for ask in (store.get, lambda found: store.put(found, stored(1), IDENTITY, CONFIG)):
        with pytest.raises(ValueError, match="expected a key of 64 hex digits"):
            ask(wrong)


def test_memory_budget_is_asked_for_each_time():
    budget = [2 * ENTRY_BYTES]
    store = ConditioningStore(ram_budget=lambda: budget[0])
    assert put(store, 1, 2) and store.ram_bytes == 2 * ENTRY_BYTES
    budget[0] = ENTRY_BYTES
    assert held(store, [1, 2]) == [1]
    assert store.ram_bytes == ENTRY_BYTES


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=14)


def model_of(steps, places: int, store: ConditioningStore) -> tuple[list[int], list[int]]:
    """Numbers that a plain list of the last used holds after the steps, and those that `store` does."""
    model = OrderedDict()
    for is_put, number in steps:
        if is_put:
            put(store, number)
            model[number] = None
        found = store.get(key(number))
        assert (found is not None) == (number in model)
        if number in model:
            model.move_to_end(number)
        while len(model) > places:
            model.popitem(last=False)
    return sorted(model), held(store, range(6))


@settings(deadline=None)
@given(steps=STEPS, places=st.integers(1, 4))
def test_memory_holds_the_last_used(steps, places):
    expected, found = model_of(steps, places, ConditioningStore(ram_budget=places * ENTRY_BYTES))
    assert found == expected


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, places=st.integers(1, 4))
def test_disk_holds_the_last_used(steps, places):
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        expected, found = model_of(steps, places, disk_store(Path(folder), places * FILE_BYTES))
    assert found == expected


def test_use_from_memory_counts_for_the_copy_on_disk(tmp_path):
    store = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=2 * FILE_BYTES)
    put(store, 1, 2)
    assert store.get(key(1))[1] == "ram"
    put(store, 3)
    assert held(disk_store(tmp_path), [1, 2, 3]) == [1, 3]


def test_entry_larger_than_the_budget_costs_no_other_its_place(tmp_path, caplog):
    store = ConditioningStore(ram_budget=ENTRY_BYTES, folder=tmp_path, disk_budget=FILE_BYTES)
    assert put(store, 1)
    for _ in range(2):
        assert not store.put(key(2), stored(2, 4), IDENTITY, CONFIG)
    assert held(store, [1, 2]) == [1] and held(disk_store(tmp_path), [1, 2]) == [1]
    assert caplog.text.count("within the disk budget") == 1


def test_entry_just_stored_stays_though_another_machine_has_a_later_clock(tmp_path):
    put(disk_store(tmp_path), 1)
    later = time.time() + 9999
    os.utime(tmp_path / f"{key(1)}.safetensors", (later, later))
    store = disk_store(tmp_path, FILE_BYTES)
    put(store, 2)
    assert held(store, [1, 2]) == [2]


def test_clear_says_what_it_freed_and_each_part_on_its_own(tmp_path):
    store = ConditioningStore(ram_budget=10**6, folder=tmp_path, disk_budget=10**6)
    put(store, 1, 2)
    on_disk = store.disk_bytes()
    assert on_disk == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert store.clear(disk=False) == 2 * ENTRY_BYTES and store.ram_bytes == 0
    assert store.get(key(1))[1] == "disk"
    assert store.clear(ram=False) == on_disk and store.disk_bytes() == 0
    assert store.get(key(1))[1] == "ram" and store.get(key(2)) is None


def test_identities_and_their_requests_are_known_without_weights(tmp_path):
    other = EncoderIdentity("cd", "int8", "float32", 50, "official", "ours", lora="x", label="a second file")
    config = config_values(EncoderConfig.from_dict(tiny_config()))
    store = disk_store(tmp_path)
    store.put(key(1), stored(1), IDENTITY, config)
    put(store, 2, 3, identity=other)
    store.get(key(2))
    for asked in (disk_store(tmp_path), store):
        assert [(one.identity, one.entries) for one in asked.identities()] == [(other, 2), (IDENTITY, 1)]
        assert EncoderConfig.from_dict(asked.identities()[1].config) == EncoderConfig.from_dict(tiny_config())
        assert [facts["prompt"] for facts in asked.requests(other.key)] == ["2", "3"]
        assert asked.requests(key(9)) == []


def test_identities_without_a_folder_are_those_of_this_process():
    store = ConditioningStore(ram_budget=10**6)
    put(store, 1)
    assert [(one.identity, one.entries) for one in store.identities()] == [(IDENTITY, 1)]
    assert [facts["prompt"] for facts in store.requests(IDENTITY.key)] == ["1"]
    store.clear()
    assert store.identities() == store.requests(IDENTITY.key) == []


def test_identity_outlives_its_entries_until_the_disk_is_cleared(tmp_path):
    other = EncoderIdentity("cd", "int8", "float32", 50, "official", "ours")
    store = disk_store(tmp_path, FILE_BYTES)
    put(store, 1)
    put(store, 2, identity=other)
    assert {one.identity: one.entries for one in disk_store(tmp_path).identities()} == {IDENTITY: 0, other: 1}
    store.clear()
    assert disk_store(tmp_path).identities() == []


@pytest.mark.parametrize("with_vision", [True, False])
def test_config_values_give_the_config_again(with_vision):
    values = tiny_config()
    if not with_vision:
        del values["vision_config"]
    config = EncoderConfig.from_dict(values)
    assert EncoderConfig.from_dict(config_values(config)) == config


def test_threads_share_one_store(tmp_path, caplog):
    store, wrong = ConditioningStore(ram_budget=3 * ENTRY_BYTES, folder=tmp_path, disk_budget=4_000), []

    def work(offset: int) -> None:
        for step in range(40):
            number = (step + offset) % 7
            put(store, number)
            found = store.get(key(number))
            if found is not None and not same(found[0], stored(number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    with mock.patch("os.fsync"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and caplog.text == ""
    assert store.ram_bytes == sum(held_.stored.nbytes for held_ in store._memory.entries().values()) <= 3 * ENTRY_BYTES


def test_two_processes_share_one_folder_and_its_budget(tmp_path):
    budget = 20_000  # about fifteen entries: both evict all the time
    writers = [start("share", tmp_path, first, first + 60, budget) for first in (0, 30)]
    said = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert all('"told": []' in one and '"hits": 0' not in one for one in said)
    entries = list(tmp_path.glob("*.safetensors"))
    assert len(entries) > 3 and sum(path.stat().st_size for path in entries) <= budget + 2_000
    assert list(tmp_path.glob("*.partial")) == []


def test_writers_killed_at_random_moments_lose_nothing_and_leave_nothing_half_written(tmp_path, caplog):
    moments = 50 if hasattr(os, "fork") else 10  # elsewhere each writer has to start anew
    before, store = stored(-1), disk_store(tmp_path)
    store.put(key(-1), before, IDENTITY, CONFIG)
    said = run("kill", tmp_path, moments)
    assert said["unfinished"] == moments and len(said["stored"]) > 5
    assert same(store.get(key(-1))[0], before)
    assert all(same(store.get(key(number))[0], large(number)) for number in said["stored"])
    files = [path.name.partition(".")[0] for path in tmp_path.glob("*.safetensors")]
    assert all(store.get(name) is not None for name in files) and caplog.text == ""
    assert store.identities()[0].entries == len(files)
