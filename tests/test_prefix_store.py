"""The store: what is found, what goes first when room is short, and that the budget always holds."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from h3te.encoder import EncoderConfig
from h3te.encoder.cache.prefix_tree import chain, common_rows, ending
from h3te.encoder.cache.prefixes import Node, PrefixStore, kept_bytes, pinned_bytes
from h3te.encoder.vision import VisionFeatures
from h3te_tests.checkpoint_files import released_config
from h3te_tests.tiny_weights import tiny_config

TINY = EncoderConfig.from_dict(tiny_config()).text
LAYERS = 2
ROW = kept_bytes(TINY, 1, torch.float32, LAYERS)


def keys(text: str) -> torch.Tensor:
    return torch.tensor([[ord(letter), 0] for letter in text], dtype=torch.int64).view(-1, 2)


def node(text: str, parent: Node | None = None, offset: int = 0) -> Node:
    shape = (len(text), TINY.num_key_value_heads, TINY.head_dim)
    layers = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(LAYERS)]
    return Node(parent, offset, keys(text), layers, torch.zeros(len(text), TINY.hidden_size))


def features(rows: int) -> VisionFeatures:
    return VisionFeatures(torch.zeros(rows, 64), (torch.zeros(rows, 64),))


class Budget:
    def __init__(self, rows: int):
        self.rows = rows

    def __call__(self) -> int:
        return self.rows * ROW


@pytest.fixture
def budget() -> Budget:
    return Budget(100)


@pytest.fixture
def store(budget) -> PrefixStore:
    return PrefixStore(budget)


def put(store, text, parent=None, offset=0, identity="one") -> Node:
    made = node(text, parent, offset)
    store.add(store.open(), identity, made)
    return made


def found(store, text, identity="one") -> int:
    return store.find(identity, keys(text))[1]


def test_kept_bytes_are_those_of_a_node():
    assert node("abcde").nbytes == kept_bytes(TINY, 5, torch.float32, LAYERS) == 5 * ROW


def test_a_token_at_full_size_takes_200_kib_of_keys_and_values_and_its_hidden_state():
    config = EncoderConfig.from_dict(released_config()).text
    assert kept_bytes(config, 1, torch.bfloat16) == 204_800 + 2 * 5120 + 16
    assert kept_bytes(config, 7, torch.float32) == 7 * (409_600 + 4 * 5120 + 16)


@pytest.mark.parametrize(
    ("text", "end"),
    [("", 0), ("x", 0), ("a", 1), ("abcdef", 6), ("abcdefgh", 6), ("abxyz", 5), ("abxy1", 5), ("abcdQ", 5), ("abz", 2),
     ("zq", 1)],
)  # fmt: skip
def test_longest_prefix_is_found_through_branches(store, text, end):
    root = put(store, "abcdef")
    branch = put(store, "xyz", root, 2)
    put(store, "1234", branch, 2)
    put(store, "QR", root, 4)
    put(store, "z")
    branch, at = store.find("one", keys(text))
    assert at == end
    whole = torch.cat([part.keys[:rows] for part, rows in chain(branch, at - branch.start)]) if branch else keys("")
    assert torch.equal(whole, keys(text)[:end])


def test_identities_share_nothing(store):
    put(store, "abcdef")
    assert found(store, "abcdef", "other") == 0
    put(store, "abcdef", identity="other")
    assert found(store, "abcdef", "other") == 6
    assert store.nbytes == 12 * ROW


def test_common_rows_end_at_the_first_that_differs_in_either_half():
    one, other = keys("abcd"), keys("abcd")
    assert common_rows(one, other) == 4 == common_rows(one, keys("abcdef"))
    other[2, 1] = 1
    assert common_rows(one, other) == 2
    assert common_rows(one, keys("")) == 0


def test_ending_walks_back_to_the_branch_that_holds_the_row():
    root = node("abcdef")
    branch = node("xyz", root, 2)
    assert ending(branch, 5) == (branch, 3)
    assert ending(branch, 2) == (root, 2) == ending(root, 2)
    assert ending(branch, 0) == (None, 0)


def test_least_recently_used_leaf_goes_first(store, budget):
    first, second = put(store, "a" * 40), put(store, "b" * 40)
    store.use(first)
    put(store, "c" * 30)
    assert (first.dropped, second.dropped) == (False, True)
    assert store.nbytes == 70 * ROW


def test_using_a_branch_keeps_what_stands_before_it(store):
    root = put(store, "a" * 40)
    leaf = put(store, "b" * 20, root, 30)
    other = put(store, "c" * 30)
    store.use(leaf)
    put(store, "d" * 35)
    assert (root.dropped, leaf.dropped, other.dropped) == (False, False, True)


def test_leaves_go_before_what_they_stand_on(store):
    root = put(store, "a" * 40)
    leaf = put(store, "b" * 20, root, 30)
    put(store, "c" * 50)
    assert (root.dropped, leaf.dropped) == (False, True)
    assert found(store, "a" * 40) == 40


def test_features_share_the_order_and_the_budget(store):
    store.add_features(store.open(), "old", features(300))
    store.add_features(store.open(), "new", features(300))
    kept = store.nbytes
    assert kept == 2 * 300 * 64 * 2 * 4
    assert store.features("old") is not None
    put(store, "a" * ((100 * ROW - kept) // ROW + 1))
    assert store.features("new") is None
    assert store.features("old") is not None


def test_a_shrinking_budget_is_kept_at_the_next_opening_and_zero_empties(store, budget):
    for letter in "abcd":
        put(store, letter * 20)
    budget.rows = 45
    store.open()
    assert store.nbytes == 40 * ROW and found(store, "d" * 20) == 20
    budget.rows = 0
    assert not store.is_on
    assert store.nbytes == 0
    budget.rows = 9
    assert store.is_on


def test_what_is_larger_than_the_budget_is_not_kept(store):
    assert put(store, "a" * 101).dropped
    assert store.nbytes == 0


def test_clear_frees_everything_and_says_how_much(store):
    root = put(store, "a" * 10)
    put(store, "b" * 10, root, 5)
    store.add_features(store.open(), "seen", features(3))
    held = store.nbytes
    assert store.clear() == held > 0
    assert (store.nbytes, found(store, "a" * 10), store.features("seen"), store.clear()) == (0, 0, None, 0)


def test_what_was_opened_before_a_clear_is_not_kept_after_it(store):
    mark = store.open()
    store.clear()
    store.add(mark, "one", node("abc"))
    store.add_features(mark, "seen", features(3))
    assert store.nbytes == 0


def test_a_branch_of_a_dropped_node_is_not_kept(store, budget):
    root = put(store, "a" * 40)
    budget.rows = 0
    store.open()
    budget.rows = 100
    assert put(store, "b" * 10, root, 20).dropped
    assert store.nbytes == 0


def test_pinned_bytes_count_what_is_shared_once():
    root = node("a" * 10)
    one, other = node("b" * 5, root, 3), node("c" * 2, root, 4)
    assert pinned_bytes([one, other, root, None]) == 17 * ROW


@pytest.mark.parametrize("seed", range(20))
def test_budget_and_bytes_hold_in_every_order_of_use(seed):
    chance, limit = random.Random(seed), Budget(60)
    store, alive = PrefixStore(limit), []
    for step in range(60):
        limit.rows = chance.choice([60, 60, 60, 30, 10])
        mark = store.open()
        text = "".join(chance.choices("ab", k=chance.randrange(1, 25)))
        parent, end = store.find("one", keys(text))
        if chance.random() < 0.2:
            store.add_features(mark, step, features(chance.randrange(1, 200)))
        elif end < len(text):
            holder, offset = ending(parent, end)
            made = node(text[end:], holder, offset)
            store.add(mark, "one", made)
            alive.append((text, made))
        alive = [(text, made) for text, made in alive if not made.dropped]
        assert store.nbytes <= limit()
        seen = sum(one.nbytes for one in store._seen.values())
        assert store.nbytes == seen + pinned_bytes(made for _, made in alive)
        for text, made in alive:
            assert not any(before.dropped for before, _ in chain(made, made.rows))
            assert store.find("one", keys(text))[1] == len(text)
    store.clear()
    assert store.nbytes == 0


def test_clearing_from_another_thread_never_breaks_the_count(store):
    stop = threading.Event()

    def clear() -> None:
        while not stop.is_set():
            store.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        for step in range(200):
            mark = store.open()
            root = node(f"{step:03}" * 5)
            store.add(mark, "one", root)
            store.add(mark, "one", node("x" * 5, root, 4))
            store.add_features(mark, step, features(4))
            assert 0 <= store.nbytes <= 100 * ROW
    finally:
        stop.set()
        thread.join()
    store.clear()
    assert store.nbytes == 0
