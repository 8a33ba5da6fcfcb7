"""Which rows of several requests are computed, which are shared, and how many of them are kept."""

from __future__ import annotations

import random

import pytest
import torch
from h3te.encoder.cache.prefix_tree import chain, common_rows
from h3te.encoder.cache.prefixes import Node
from h3te.encoder.placement import Block
from h3te.encoder.segments import MIN_REUSED, Segment, plan_segments, share_room, usable

NOTHING = (None, 0)


def keys(text: str) -> torch.Tensor:
    return torch.tensor([[ord(letter), 0] for letter in text], dtype=torch.int64).view(-1, 2)


def kept(text: str) -> Node:
    return Node(None, 0, keys(text), [], torch.zeros(len(text), 1))


def plan(*texts: str, found=None, blocks=None):
    return plan_segments([keys(t) for t in texts], blocks or [[]] * len(texts), found or [NOTHING] * len(texts))


def text_of(parts) -> str:
    return "".join(chr(row) for branch, rows in parts for row in branch.keys[:rows, 0].tolist())


START, MORE = "s" * MIN_REUSED, "m" * MIN_REUSED


def test_one_request_without_anything_before_is_one_segment():
    made = plan("abc")
    assert [(s.start, s.rows, s.followed) for s in made.segments] == [(0, 3, False)]
    assert [(text_of(w.parts), w.reused) for w in made.wholes] == [("abc", 0)]


def test_requests_that_begin_alike_follow_the_first():
    made = plan(START + "a", START + "bc", START + "bd", "x" + START)
    assert [(s.start, s.rows, s.followed) for s in made.segments] == [
        (0, len(START) + 1, True), (len(START), 2, True), (len(START) + 1, 1, False), (0, len(START) + 1, False),
    ]  # fmt: skip
    assert made.segments[2].parent is made.segments[1]


def test_equal_requests_are_computed_once_however_short():
    made = plan("ab", "ab", "abc")
    assert [(s.start, s.rows) for s in made.segments] == [(0, 2), (0, 3)]
    assert [w.reused for w in made.wholes] == [0, 2, 0]


def test_kept_rows_come_first_and_what_is_longer_wins():
    node = kept(START + "abc")
    found = [(node, len(START) + 2), (node, len(START)), (node, len(START))]
    made = plan(START + "ab", START + MORE + "x", START + MORE + "y", found=found)
    assert [w.reused for w in made.wholes] == [len(START) + 2, len(START), len(START) + len(MORE)]
    assert [(s.parent, s.offset) for s in made.segments] == [(node, len(START)), (made.segments[0], len(MORE))]


@pytest.mark.parametrize(
    ("end", "reused"),
    [(MIN_REUSED - 1, 0), (MIN_REUSED, MIN_REUSED), (45, 40), (50, 50), (59, 50), (60, 60), (61, 60), (99, 90)],
)
def test_a_prefix_ends_before_a_vision_block_that_it_cuts(end, reused):
    blocks = [Block(40, 50, 2, 5, "image", 0), Block(50, 60, 2, 5, "video", 0), Block(60, 70, 2, 5, "image", 10),
              Block(90, 100, 2, 5, "image", 20)]  # fmt: skip
    assert usable(end, blocks, 200) == reused
    assert usable(200, blocks, 200) == 200


def test_blocks_of_a_segment_are_those_behind_its_start():
    blocks = [Block(33, 37, 2, 2, "image", 0), Block(40, 44, 2, 2, "image", 4)]
    node, text = kept("x" * 38), "x" * 50
    (segment,) = plan(text, found=[(node, 38)], blocks=[blocks]).segments
    assert (segment.start, segment.blocks) == (38, blocks[1:])


@pytest.mark.parametrize("seed", range(30))
def test_every_request_is_put_together_whole_and_no_row_twice(seed):
    chance = random.Random(seed)
    starts = ["".join(chance.choices("ab", k=40)) for _ in range(2)]
    texts = []
    for _ in range(6):
        base = chance.choice([*starts, *texts])
        texts.append(base[: chance.randrange(1, len(base) + 1)] + "".join(chance.choices("ab", k=chance.randrange(9))))
    node = kept(starts[0])
    common = [common_rows(keys(text), node.keys) for text in texts]
    made = plan(*texts, found=[(node, n) if n else NOTHING for n in common])
    assert [text_of(w.parts) for w in made.wholes] == texts
    for whole, text in zip(made.wholes, texts, strict=True):
        assert whole.reused >= MIN_REUSED or whole.reused in (0, len(text))
    order = {segment: i for i, segment in enumerate(made.segments)}
    for segment in made.segments:
        before = [branch for branch, _ in chain(segment.parent, segment.offset) if isinstance(branch, Segment)]
        assert all(branch.followed and order[branch] < order[segment] for branch in before)
    assert sum(s.rows for s in made.segments) == sum(len(t) - w.reused for t, w in zip(texts, made.wholes, strict=True))


@pytest.mark.parametrize(
    ("room", "rows", "left"),
    [(10_000, [70, 20, 10], 9900), (100, [70, 20, 10], 0), (95, [70, 20, 5], 0), (80, [70, 10, 0], 0),
     (65, [50, 15, 0], 0), (55, [50, 5, 0], 0), (45, [45, 0, 0], 0), (31, [0, 0, 0], 31), (0, [0, 0, 0], 0)],
)  # fmt: skip
def test_room_is_shared_in_order_and_never_cuts_a_block(room, rows, left):
    block = Block(50, 70, 4, 5, "image", 0)
    text = "x" * 40 + "y" * 30
    other = "x" * 40 + "z" * 20
    made = plan(text, other, other + "w" * 10, blocks=[[block], [], []])
    found = share_room(made.segments, [[block], [], []], room, 1)
    assert ([s.keep_rows for s in made.segments], found) == (rows, left)
