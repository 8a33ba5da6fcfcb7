"""Prefix reuse with packed, streamed and partly loaded weights, under a budget, and what it holds in memory."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from h3te.encoder import load_encoder
from h3te.encoder.cache.prefixes import Node, PrefixStore, PrefixUse
from h3te.encoder.encode_pass import EncodePass
from h3te.encoder.presentation import present_each
from h3te.encoder.reusing_pass import ReusingPass
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.foreign_leaf import ForeignLeaf, ForeignOps
from h3te_tests.golden_cases import relative_error
from h3te_tests.one_device import CPU, META, OneDevice
from h3te_tests.packed_host import like_a_device, open_as, stored_as  # noqa: F401 (fixtures)
from h3te_tests.partial_host import withheld
from h3te_tests.prefix_requests import fresh, image, store, use, video
from h3te_tests.test_memory_plan import LiveBytes, requests_of, wide  # noqa: F401 (fixture)
from h3te_tests.tiny_weights import TAP_LAYER

GIVEN = [image(1), video(2)]
KINDS = ("bf16", "nvfp4_awq", "int8_convrot", "gguf", "bf16 streamed", "nvfp4_awq streamed", "gguf streamed")


def reuse(encoder, exact: float = 1e-5) -> None:
    """First request, edited prompt, appended picture, several prompts: each what a fresh encode gives."""
    prefixes = use(store())
    first = encoder.encode("a fox", GIVEN, prefixes=prefixes)
    assert torch.equal(first.hidden, fresh(encoder, "a fox", GIVEN))
    edited = encoder.encode("an owl", GIVEN, prefixes=prefixes)
    assert edited.reused == len(first.token_ids) - 2
    assert relative_error(edited.hidden, fresh(encoder, "an owl", GIVEN)) <= exact
    several = present_each(["an owl sleeps", "a fox", "an owl"], [*GIVEN, image(3)])
    for one in encoder.encode_presentations(several, prefixes=prefixes):
        assert one.reused >= len(first.token_ids) - 2
        want = encoder.encode_presentation(one.presentation, vision_packing="per_reference").hidden
        assert relative_error(one.hidden, want) <= exact


@pytest.mark.parametrize("kind", KINDS)
def test_reuse_is_exact_with_weights_as_they_are_stored(open_as, kind):  # noqa: F811
    reuse(open_as(kind, torch.float32).encoder)


@pytest.mark.parametrize("kind", ["bf16", "nvfp4_awq"])
@pytest.mark.parametrize("budget", [0.0, 0.4, 1.0])
def test_reuse_is_exact_with_partly_loaded_weights(open_as, like_a_device, kind, budget):  # noqa: F811
    clip = open_as(kind, torch.float32)
    clip.patcher.partially_load(CPU, int(budget * clip.patcher.model_size()))
    try:
        with withheld(clip):
            reuse(clip.encoder)
    finally:
        clip.patcher.detach()


def test_streamed_weights_are_read_once_a_pass_and_not_at_all_for_the_same_request(open_as, monkeypatch):  # noqa: F811
    encoder, prefixes, read = open_as("nvfp4_awq streamed").encoder, use(store()), Counter()
    encoder.encode("a fox", GIVEN, prefixes=prefixes)
    files, whole = encoder.source.files, encoder.source.files.read
    monkeypatch.setattr(files, "read", lambda e, *rest: read.update([e.stored_name]) or whole(e, *rest))
    encoder.encode_presentations(present_each(["an owl", "a fox that runs", "a cat"], GIVEN), prefixes=prefixes)
    layers = {name: times for name, times in read.items() if ".layers." in name}
    assert len(layers) > 20 and set(layers.values()) == {1}
    assert not [name for name in read if "visual" in name]
    read.clear()
    encoder.encode("a fox", GIVEN, prefixes=prefixes)
    assert not read


def test_each_weight_is_borrowed_once_for_all_segments(tiny_checkpoint, tokenizer_folder):
    """The leaves spoil what they lent when the loan ends: what is kept must not be part of it."""
    ops = ForeignOps(ForeignLeaf)
    options = {"tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, "dtype": torch.float32}
    encoder, prefixes = load_encoder(tiny_checkpoint, ops=ops, **options), use(store())
    encoder.encode("a fox", [image(1)], prefixes=prefixes)
    ops.Leaf.borrowed.clear()
    given = present_each(["a fox", "an owl in the snow", "a cat"], [image(1), image(2)])
    done = encoder.encode_presentations(given, prefixes=prefixes)
    assert set(Counter(ops.Leaf.borrowed).values()) == {1}
    plain = load_encoder(tiny_checkpoint, **options)
    for one in done:
        want = plain.encode_presentation(one.presentation, vision_packing="per_reference").hidden
        assert relative_error(one.hidden, want) <= 1e-5


def nodes(kept: PrefixStore) -> list[Node]:
    found = [node for roots in kept._roots.values() for node in roots]
    for node in found:
        found += node.children
    return found


@pytest.mark.parametrize("budget", [10**5, 6 * 10**5, 8 * 10**5, 10**6, 3 * 10**6])
def test_any_budget_holds_and_whatever_fits_is_reused(tiny_checkpoint, tokenizer_folder, budget):
    options = {"tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, "dtype": torch.float32}
    encoder, kept = load_encoder(tiny_checkpoint, **options), store(budget)
    references, reused = [image(1), image(2)], 0
    for prompt in ("a fox", "an owl", "a cat in deep snow"):
        for given in (references, references[:1]):
            done = encoder.encode(prompt, given, prefixes=use(kept))
            assert kept.nbytes <= budget
            assert relative_error(done.hidden, fresh(encoder, prompt, given)) <= 1e-5
            reused += done.reused
    assert (reused > 0) == (budget >= 8 * 10**5)  # below, not even the first picture fits: 72 tokens of 10.5 kB
    for node in nodes(kept):
        tensors = [node.hidden, node.keys, *(x for pair in node.layers for x in pair)]
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in tensors)
        assert sum(x.nbytes for x in tensors) == node.nbytes


def test_kept_tensors_of_a_cpu_are_those_of_the_pass_and_not_copies(tiny_checkpoint, tokenizer_folder, monkeypatch):
    from h3te.encoder.past import Past

    made, real = set(), Past.followed_by
    monkeypatch.setattr(
        Past, "followed_by", lambda self, *pair: made.update(x.data_ptr() for x in pair) or real(self, *pair)
    )
    kept = store()
    load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder).encode("a fox", prefixes=use(kept))
    (node,) = nodes(kept)
    assert {x.data_ptr() for pair in node.layers for x in pair} <= made


def held(wide, requests, prefixes=None) -> tuple[int, object]:  # noqa: F811
    known = [wide.slots.get(name) for name in wide.slots.names]
    known += [part for r in requests for part in (r.ids, *[p.pixel_values for p in r.patches.values() if p])]
    with LiveBytes(known) as peak, torch.no_grad():
        given = (wide.model, wide.config, requests, META, wide.dtype)
        one = ReusingPass(*given, prefixes) if prefixes else EncodePass(*given, "per_reference")
        one.run(None)
        one.keep()
    return peak.peak, one


@pytest.mark.parametrize("sizes", [[(0, 4000)], [(2, 60)], [(1, 2000)], [(4, 300)]])
def test_a_pass_that_keeps_holds_no_more_than_without_and_what_is_kept(wide, sizes, monkeypatch):  # noqa: F811
    from h3te.encoder import reusing_pass

    monkeypatch.setattr(reusing_pass, "block_digests", lambda patches: [bytes([i]) * 16 for i in range(4)])
    requests, kept = requests_of(sizes, shared=False), store(10**10)
    bare, _ = held(wide, requests)
    peak, _ = held(wide, requests, PrefixUse(kept, "one"))
    assert kept.nbytes > 0
    assert peak <= bare + kept.nbytes


def test_kept_rows_come_to_the_device_that_computes(open_as):  # noqa: F811
    """`meta` stands for the device: no operation may mix what is kept on the CPU with it."""
    clip, prefixes = open_as("bf16"), use(store())
    encoder = clip.encoder
    encoder.encode("a fox", GIVEN, prefixes=prefixes)
    clip.patcher.load_device = META
    clip.patcher.partially_load(META, 10**9)
    try:
        with OneDevice():
            edited, turned = (
                encoder.encode_presentations(present_each(["an owl"], given), prefixes=prefixes, device=META)[0]
                for given in (GIVEN, GIVEN[::-1])
            )
    finally:
        clip.patcher.detach()
    assert (edited.hidden.device, turned.hidden.device) == (META, META)
    assert edited.reused > 0 and turned.seen_before > 0
