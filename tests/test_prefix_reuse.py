"""What was encoded before is not computed again, and the result is that of a fresh encode within rounding."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import ImageReference, load_encoder
from h3te.encoder.cache.prefixes import PrefixStore
from h3te.encoder.presentation import present, present_each
from h3te.encoder.segments import MIN_REUSED
from h3te.encoder.tokens import IMAGE_PAD, VISION_END, VISION_START
from h3te_tests.golden_cases import pattern, relative_error
from h3te_tests.prefix_requests import PLENTY, edits, fresh, image, store, use, video
from h3te_tests.tiny_weights import TAP_LAYER

EXACT = 1e-5  # float32
DEPTH = 6
SEEN = 64 + 8  # tokens of one 256 x 256 picture, its label and markers


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint, tokenizer_folder):
    return load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


@pytest.fixture(scope="module")
def bf16(tiny_checkpoint, tokenizer_folder):
    return load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


def asked(encoder, prompt, references, prefixes):
    """The conditioning, and the steps that were computed."""
    steps = []
    done = encoder.encode(prompt, references, prefixes=prefixes, progress=lambda *step: steps.append(step))
    assert [step[0] for step in steps] == list(range(1, len(steps) + 1))
    assert {step[1] for step in steps} <= {len(steps)}
    return done, len(steps)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert relative_error(got, want) <= EXACT


def test_first_encode_is_the_fresh_one_to_the_bit(encoder):
    given = [image(1), video(2)]
    done, steps = asked(encoder, "a fox", given, use(store()))
    assert (done.reused, done.seen_before, steps) == (0, 0, DEPTH + TAP_LAYER)
    assert torch.equal(done.hidden, fresh(encoder, "a fox", given))


def test_new_prompt_after_the_same_pictures_computes_the_prompt_alone(encoder):
    prefixes, given = use(store()), [image(1), image(2)]
    asked(encoder, "a fox", given, prefixes)
    done, steps = asked(encoder, "some owl sleeps", given, prefixes)
    assert (done.reused, done.seen_before, steps) == (2 * SEEN, 0, TAP_LAYER)
    assert_close(done.hidden, fresh(encoder, "some owl sleeps", given))


def test_same_request_again_computes_nothing_and_needs_no_weights(tiny_checkpoint, tokenizer_folder, encoder):
    kept, given = store(), [image(1)]
    first, _ = asked(encoder, "a fox", given, use(kept))
    empty = load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    done, steps = asked(empty, "a fox", given, use(kept))
    assert (done.reused, steps) == (len(done.token_ids), 0)
    assert torch.equal(done.hidden, first.hidden)
    assert not empty.is_loaded


def test_an_appended_reference_computes_itself_and_what_follows(encoder):
    prefixes, given = use(store()), [image(1), image(2)]
    asked(encoder, "a fox", given, prefixes)
    given.append(image(3))
    done, steps = asked(encoder, "a fox", given, prefixes)
    assert (done.reused, done.seen_before, steps) == (2 * SEEN, 0, DEPTH + TAP_LAYER)
    assert_close(done.hidden, fresh(encoder, "a fox", given))


@pytest.mark.parametrize("order", [[1, 0], [1], [1, 0, 1]])
def test_features_are_reused_in_any_order_of_the_references(encoder, order):
    prefixes, given = use(store()), [image(1), video(2)]
    asked(encoder, "a fox", given, prefixes)
    other = [given[i] for i in order]
    done, steps = asked(encoder, "a fox", other, prefixes)
    blocks = len(encoder.encode("", other).sequence.vision_spans)
    assert (done.reused, done.seen_before, steps) == (0, blocks, TAP_LAYER)
    assert_close(done.hidden, fresh(encoder, "a fox", other))


def test_features_of_references_in_use_outlive_prompts_that_are_not(encoder):
    """The prefix stands for them; they are asked for only when the order changes."""
    given, fits = [image(1), image(2)], PrefixStore(lambda: budget)
    budget = PLENTY
    asked(encoder, "a fox", given, use(fits))
    budget = fits.nbytes + 10_512 * 120  # bytes a token: four prompts or five
    for i in range(20):
        asked(encoder, f"an owl {i} " + "sleeps " * 20, given, use(fits))
    done, steps = asked(encoder, "a fox", given[::-1], use(fits))
    assert (done.seen_before, steps) == (2, TAP_LAYER)


def test_a_longer_video_shares_the_steps_before_the_first_that_differs(encoder):
    prefixes = use(store())
    asked(encoder, "a fox", [image(1), video(2, 48)], prefixes)
    done, _ = asked(encoder, "a fox", [image(1), video(2, 72)], prefixes)
    spans = done.sequence.vision_spans
    assert len(spans) == 4 and spans[2][1] <= done.reused < spans[3][0]  # two of three steps
    assert_close(done.hidden, fresh(encoder, "a fox", [image(1), video(2, 72)]))


@pytest.mark.parametrize("other", [image(2), image(1, (256, 288)), ImageReference(pattern(256, 256, 1) ^ 1)])
def test_another_picture_or_size_shares_only_what_stands_before_it(encoder, other):
    prefixes = use(store())
    asked(encoder, "a fox", [image(5), image(1)], prefixes)
    done, steps = asked(encoder, "a fox", [image(5), other], prefixes)
    assert (done.reused, done.seen_before, steps) == (SEEN + 7, 0, DEPTH + TAP_LAYER)
    assert_close(done.hidden, fresh(encoder, "a fox", [image(5), other]))


def test_another_identity_shares_nothing(encoder):
    kept, given = store(), [image(1)]
    asked(encoder, "a fox", given, use(kept))
    done, steps = asked(encoder, "a fox", given, use(kept, "other"))
    assert (done.reused, done.seen_before, steps) == (0, 0, DEPTH + TAP_LAYER)


def test_dtypes_and_taps_share_nothing_even_under_one_identity(encoder, bf16, tiny_checkpoint, tokenizer_folder):
    kept, given = store(), [image(1)]
    asked(encoder, "a fox", given, use(kept))
    shallow = load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=3, tokenizer=tokenizer_folder)
    for other in (bf16, shallow):
        assert asked(other, "a fox", given, use(kept))[0].reused == 0


def test_a_few_equal_words_do_not_split_a_prompt(encoder):
    prefixes = use(store())
    short, long = "word " * (MIN_REUSED - 1), "word " * (MIN_REUSED + 1)
    for start, reused in ((short, 0), (long, MIN_REUSED + 1)):
        asked(encoder, start + "fox", (), prefixes)
        done, _ = asked(encoder, start + "owl", (), prefixes)
        assert done.reused == reused
        assert_close(done.hidden, fresh(encoder, start + "owl"))


def test_without_budget_everything_is_as_without_a_store(encoder):
    kept, given = store(0), [image(1), image(2)]
    for _ in range(2):
        done, steps = asked(encoder, "a fox", given, use(kept))
        assert (done.reused, steps, kept.nbytes) == (0, DEPTH + TAP_LAYER, 0)
        assert torch.equal(done.hidden, encoder.encode("a fox", given).hidden)


def test_shared_references_are_computed_once_for_several_prompts(encoder):
    prompts = ["a fox", "an owl in the snow", "a fox", "a fox that runs"]
    given = present_each(prompts, [image(1), image(2)])
    done = encoder.encode_presentations(given, prefixes=use(store()))
    own = [len(one.token_ids) - one.reused for one in done]
    assert own == [2 * SEEN + 2, 5, 0, 2]
    for prompt, one in zip(prompts, done, strict=True):
        assert_close(one.hidden, fresh(encoder, prompt, [image(1), image(2)]))


def test_requests_with_patches_of_their_own_share_what_looks_the_same(encoder):
    given = [present("a fox", [image(1)]), present("an owl", [image(1), image(2)]), present("a fox", [image(2)])]
    calls = []
    done = encoder.encode_presentations(given, prefixes=use(store()), progress=lambda *call: calls.append(call))
    assert [(one.reused, one.seen_before) for one in done] == [(0, 0), (SEEN, 0), (0, 1)]
    assert len(calls) == DEPTH + TAP_LAYER
    for one in done:
        assert_close(one.hidden, encoder.encode_presentation(one.presentation, vision_packing="per_reference").hidden)


def test_several_prompts_stand_on_what_was_kept_and_on_each_other(encoder):
    prefixes, given = use(store()), [image(1)]
    asked(encoder, "a fox", given, prefixes)
    words = "the same long start of a prompt "
    prompts = [words + "one", words + "two", "a fox", words + "one and more"]
    done = encoder.encode_presentations(present_each(prompts, given), prefixes=prefixes)
    assert [one.reused for one in done] == [SEEN, SEEN + 7, SEEN + 2, SEEN + 8]
    for prompt, one in zip(prompts, done, strict=True):
        assert_close(one.hidden, fresh(encoder, prompt, given))


def test_what_is_handed_out_is_nobody_elses(encoder):
    prefixes, given = use(store()), [image(1)]
    want = fresh(encoder, "a fox", given)
    for _ in range(3):
        pair = encoder.encode_presentations(present_each(["a fox", "a fox"], given), prefixes=prefixes)
        for one in pair:
            assert_close(one.hidden, want)
            one.hidden.fill_(float("nan"))


def test_encode_ids_reuses_rows_of_equal_patches(encoder):
    values = torch.rand(256, 1536, generator=torch.Generator().manual_seed(0)) * 2 - 1
    grid, block = torch.tensor([[1, 16, 16]]), [VISION_START, *[IMAGE_PAD] * 64, VISION_END]
    prefixes, steps = use(store()), []
    for tail, changed, computed in ((5, 0, DEPTH + TAP_LAYER), (6, 0, TAP_LAYER), (6, 1, DEPTH + TAP_LAYER)):
        ids, pixels = torch.tensor([*range(40), *block, tail, tail]), values + changed / 10
        arguments = {"pixel_values": pixels, "image_grid_thw": grid}
        got = encoder.encode_ids(ids, **arguments, prefixes=prefixes, progress=lambda *step: steps.append(step))
        assert_close(got, encoder.encode_ids(ids, **arguments))
        assert len(steps) == computed
        steps.clear()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("step", range(1, DEPTH + TAP_LAYER + 1, 3))
def test_stop_in_the_middle_leaves_the_store_as_it_was(encoder, step):
    kept = store()
    asked(encoder, "a fox", [image(1)], use(kept))
    before = kept.nbytes

    def stop(done: int, total: int, what: str) -> None:
        if done == step:
            raise Stopped

    with pytest.raises(Stopped):
        encoder.encode("an owl", [image(1), image(2)], prefixes=use(kept), progress=stop)
    assert kept.nbytes == before
    done, steps = asked(encoder, "an owl", [image(1), image(2)], use(kept))
    assert (done.reused, steps) == (SEEN, DEPTH + TAP_LAYER)
    assert_close(done.hidden, fresh(encoder, "an owl", [image(1), image(2)]))


def test_results_that_are_not_finite_are_not_kept(tiny_checkpoint, tokenizer_folder):
    broken = load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    broken.materialise()
    leaf, kept = broken.model.language_model.layers[2].mlp.down_proj, store()
    good = leaf.weight.data
    leaf.weight.data = torch.full_like(good, float("nan"))
    with pytest.raises(RuntimeError, match="expected finite hidden states, got NaN or infinity, first in layer 3 of 5"):
        broken.encode("a fox", [image(1)], prefixes=use(kept))
    assert kept.nbytes == 0
    leaf.weight.data = good
    assert asked(broken, "a fox", [image(1)], use(kept))[0].reused == 0


def test_what_is_cleared_while_a_pass_runs_stays_valid_in_it_and_nothing_is_kept(encoder):
    kept, given = store(), [image(1)]
    asked(encoder, "a fox", given, use(kept))

    def clear(done: int, total: int, what: str) -> None:
        if done == 2:
            assert kept.clear() > 0

    done = encoder.encode("an owl", given, prefixes=use(kept), progress=clear)
    assert_close(done.hidden, fresh(encoder, "an owl", given))
    assert kept.nbytes == 0


def test_200_edits_give_what_fresh_encodes_give(encoder, bf16):
    """float32 within 1e-5; bfloat16 no further from float32 than 1.2 times what its fresh encode is."""
    done = tokens = reused = 0
    squares = torch.zeros(2, dtype=torch.float64)
    fresh_ones: dict = {}
    for seed in range(20):
        exact, rounded = store(), store()
        for prompt, given, identity in edits(seed, 10):
            key = prompt, tuple(map(id, given))
            if key not in fresh_ones:  # what is held keeps its id to itself
                fresh_ones[key] = fresh(encoder, prompt, given), fresh(bf16, prompt, given), given
            want, near, _ = fresh_ones[key]
            one = encoder.encode(prompt, given, prefixes=use(exact, identity))
            assert_close(one.hidden, want)
            half = bf16.encode(prompt, given, prefixes=use(rounded, identity))
            assert half.reused == one.reused
            errors = torch.tensor([relative_error(x, want) for x in (half.hidden, near)], dtype=torch.float64)
            assert errors[0] <= 1.2 * errors[1]
            squares += errors**2
            done, tokens, reused = done + 1, tokens + len(one.token_ids), reused + one.reused
    assert done == 200
    assert squares[0].sqrt() <= 1.2 * squares[1].sqrt()
    assert reused > 0.4 * tokens
