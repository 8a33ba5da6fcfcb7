"""Several prompts in one pass over the weights: each gets what it gets alone, and a weight is taken once for all."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.foreign_leaf import ForeignLeaf, ForeignOps
from h3te_tests.packed_host import like_a_device, open_as, stored_as  # noqa: F401 (fixtures)

PROMPTS = ["a fox", "a much longer prompt about an owl that sleeps", "", "a fox"]
PICTURES = {
    "minimax_ref_items": [
        {"type": "image", "data": picture(1, 64, 64)},
        {"type": "image", "data": picture(2, 64, 96), "timestamp": 1.5},
        {"type": "video", "data": picture(3, 64, 64, batch=2), "timestamps": [0.0, 0.5]},
    ]
}
OTHERS = {"minimax_ref_items": [{"type": "image", "data": picture(4, 96, 64)}]}
REFERENCES = [PICTURES, PICTURES, OTHERS, {}]


@pytest.fixture
def any_clip(comfy):  # noqa: F811
    from h3te.nodes.host import any_clip

    return any_clip


@pytest.fixture
def encode_all(any_clip):
    def encode(*clips, prompts=PROMPTS, references=REFERENCES):
        """One ask per prompt, of the clips in turn."""
        asks = zip(prompts, references, strict=True)
        asked = [any_clip.Ask(clips[i % len(clips)], *ask) for i, ask in enumerate(asks)]
        return any_clip.encode_all(asked, "node")

    return encode


def alone(clip, prompt: str, references) -> list:
    return clip.encode_from_tokens_scheduled(clip.tokenize(prompt, **references))


def assert_same(got: list, want: list) -> None:
    (cond, extras), (their_cond, their_extras) = got[0], want[0]
    assert len(got) == len(want) == 1
    assert torch.equal(cond, their_cond)
    assert cond.dtype == torch.float32
    assert torch.equal(extras.pop("minimax_token_tags"), their_extras.pop("minimax_token_tags"))
    assert extras == their_extras


@pytest.fixture
def passes(monkeypatch):
    """How many requests each pass over the weights has served."""
    from h3te.encoder import model

    served, real = [], model.EncodePass
    monkeypatch.setattr(model, "EncodePass", lambda *a, **k: served.append(len(a[2])) or real(*a, **k))
    return served


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["bf16", "nvfp4_awq", "int8_convrot streamed", "gguf"])
def test_each_prompt_gets_to_the_bit_what_it_gets_alone(open_as, encode_all, passes, kind, dtype):  # noqa: F811
    clip = open_as(kind, dtype)
    want = [alone(clip, *ask) for ask in zip(PROMPTS, REFERENCES, strict=True)]
    assert passes == [1, 1, 1, 1]
    done = encode_all(clip)
    assert passes[4:] == [4]
    for one, its in zip(done, want, strict=True):
        assert_same(one.conditioning, its)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("packing", ["official", "per_reference"])
def test_both_vision_packings_give_what_they_give_alone(open_as, dtype, packing):  # noqa: F811
    clip = open_as("bf16", dtype)
    given = [clip.tokenize(p, **r)["qwen3vl_32b"].presentation for p, r in zip(PROMPTS, REFERENCES, strict=True)]
    want = [clip.encoder.encode_presentation(each, vision_packing=packing).hidden for each in given]
    for lend_once in (True, False):
        together = clip.encoder.encode_presentations(given, vision_packing=packing, lend_once=lend_once)
        assert all(torch.equal(one.hidden, its) for one, its in zip(together, want, strict=True))


@pytest.mark.parametrize("budget", [0.0, 0.4, 1.0])
def test_partly_loaded_each_prompt_gets_what_it_gets_alone(open_as, like_a_device, encode_all, budget):  # noqa: F811
    clip = open_as("bf16")
    want = [alone(clip, *ask) for ask in zip(PROMPTS, REFERENCES, strict=True)]
    clip.patcher.partially_unload(clip.patcher.offload_device, (1 - budget) * clip.patcher.model_size())
    for one, its in zip(encode_all(clip), want, strict=True):
        assert_same(one.conditioning, its)


def test_each_weight_is_borrowed_once_for_all_prompts(tiny_checkpoint, tokenizer_folder):
    """The leaves spoil what they lent when the loan ends, so that a wrong length of a loan is seen too."""
    from h3te.encoder import ImageReference, load_encoder
    from h3te.encoder.presentation import present, present_each
    from h3te_tests.tiny_weights import TAP_LAYER

    ops = ForeignOps(ForeignLeaf)
    options = {"tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder}
    encoder = load_encoder(tiny_checkpoint, ops=ops, **options)
    given = [*present_each(["a fox", "an owl in the snow"], [ImageReference(picture(1)[0])]), present("alone")]
    given.append(present("other", [ImageReference(picture(2, 64, 64)[0])]))
    plain = load_encoder(tiny_checkpoint, **options)
    want = [plain.encode_presentation(each).hidden for each in given]
    encoder.materialise()
    ops.Leaf.borrowed.clear()
    together = encoder.encode_presentations(given)
    assert all(torch.equal(one.hidden, its) for one, its in zip(together, want, strict=True))
    leaves = {id(m) for m in encoder.modules() if isinstance(m, ForeignLeaf)}
    assert Counter(ops.Leaf.borrowed) == dict.fromkeys(leaves, 1)
    ops.Leaf.borrowed.clear()
    encoder.encode_presentations(given, lend_once=False)
    assert max(Counter(ops.Leaf.borrowed).values()) == len(given)


def test_each_streamed_weight_is_read_once_for_all_prompts(open_as, encode_all, monkeypatch):  # noqa: F811
    clip = open_as("nvfp4_awq streamed")
    files, read = clip.encoder.source.files, Counter()
    whole = files.read
    monkeypatch.setattr(files, "read", lambda e, *rest: read.update([e.stored_name]) or whole(e, *rest))
    encode_all(clip)
    layers = {name: times for name, times in read.items() if ".layers." in name}
    assert len(layers) > 20
    assert set(layers.values()) == {1}


def test_packed_weights_are_unpacked_once_for_all_prompts(open_as, encode_all, monkeypatch):  # noqa: F811
    from h3te.encoder import layers

    clip, counts, real = open_as("nvfp4_awq"), [], layers.unpack
    for prompts in (1, 4):
        calls = []
        monkeypatch.setattr(layers, "unpack", lambda *a, calls=calls: calls.append(1) or real(*a))
        encode_all(clip, prompts=PROMPTS[:prompts], references=[{}] * prompts)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_references_of_one_mapping_are_prepared_and_seen_once(tiny_clip, encode_all, monkeypatch):  # noqa: F811
    from h3te.encoder import presentation
    from h3te.encoder.vision import VisionTower

    prepared, calls, real, see = [], [], presentation.image_patches, VisionTower.see
    monkeypatch.setattr(presentation, "image_patches", lambda *a, **k: prepared.append(1) or real(*a, **k))
    monkeypatch.setattr(
        VisionTower, "see", lambda self, given, *a, **k: calls.append(len(given)) or see(self, given, *a, **k)
    )
    encode_all(tiny_clip, references=[PICTURES, OTHERS, PICTURES, PICTURES])
    assert prepared == [1] * 3
    assert calls == [3]  # images and the video of one mapping, the image of the other


def test_two_clips_are_a_pass_each_and_the_order_is_kept(open_as, encode_all, passes):  # noqa: F811
    first, second = open_as("bf16"), open_as("nvfp4_awq")
    done = encode_all(first, second)
    assert passes == [2, 2]
    for i, one in enumerate(done):
        assert_same(one.conditioning, alone((first, second)[i % 2], PROMPTS[i], REFERENCES[i]))


def test_node_says_that_the_time_is_that_of_the_pass(tiny_clip, encode_all):  # noqa: F811
    done = encode_all(tiny_clip)
    assert all(" s for 4 prompts in one pass, cache: none" in one.summary for one in done)
    assert "one pass" not in encode_all(tiny_clip, prompts=["a"], references=[{}])[0].summary


def test_plan_of_all_prompts_is_checked_before_the_load(tiny_clip, encode_all, monkeypatch):  # noqa: F811
    from h3te.nodes.host import budget

    tokens = tiny_clip.tokenize_each(PROMPTS, **PICTURES)
    batches = [each["qwen3vl_32b"] for each in tokens]
    one = budget.budget_of_request(tiny_clip.patcher, batches[0], mapped=False).plan
    every = budget.budget_of_request(tiny_clip.patcher, *batches, mapped=False).plan
    assert every.patches == one.patches
    assert every.prompts == 4
    assert every.tokens == sum(len(batch.sequence) for batch in batches)
    assert every.bare > one.bare
    loads = []
    monkeypatch.setattr(tiny_clip.encoder, "materialise", lambda *a: loads.append(a))
    monkeypatch.setattr(budget, "limit_of", lambda device: (every.bare + one.bare) // 2 / budget.MARGIN)
    with pytest.raises(RuntimeError, match=r"got 4 prompts of \d+ tokens with .* Give fewer prompts at once, or "):
        tiny_clip.encode_each(tokens)
    assert loads == []


def test_out_of_memory_is_repeated_for_all_prompts_and_said(tiny_clip, encode_all, monkeypatch):  # noqa: F811
    from h3te.nodes.host.leaf import HostLeaf

    apart = [
        tiny_clip.encoder.encode_presentation(
            tiny_clip.tokenize(p, **r)["qwen3vl_32b"].presentation, vision_packing="per_reference"
        ).hidden.float()
        for p, r in zip(PROMPTS, REFERENCES, strict=True)
    ]
    real, borrowed = HostLeaf.borrow, []

    def borrow(leaf, x):
        borrowed.append(leaf)
        if len(borrowed) == 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(leaf, x)

    monkeypatch.setattr(HostLeaf, "borrow", borrow)
    done = encode_all(tiny_clip)
    assert all(torch.equal(one.conditioning[0][0], its) for one, its in zip(done, apart, strict=True))
    assert all(one.notes[0].startswith("ran out of memory, repeated with all weights offloaded") for one in done)
    assert max(Counter(map(id, borrowed[5:])).values()) > 1  # one matrix at a time, for each prompt


def test_stop_in_the_pass_lends_nothing_on_and_the_next_prompts_are_right(comfy, tiny_clip, encode_all, monkeypatch):  # noqa: F811
    from h3te.nodes.host import local_computing as module

    want, real = [one.conditioning[0][0] for one in encode_all(tiny_clip)], module.HostProgress.__call__

    def stop(self, done: int, total: int, what: str) -> None:
        if what.startswith("layer 2 "):
            comfy.model_management.interrupt_current_processing(True)
        real(self, done, total, what)

    with monkeypatch.context() as patch:
        patch.setattr(module.HostProgress, "__call__", stop)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            encode_all(tiny_clip)
    assert not any(getattr(m, "_loans", None) or getattr(m, "_lent", None) for m in tiny_clip.encoder.modules())
    assert all(torch.equal(one.conditioning[0][0], its) for one, its in zip(encode_all(tiny_clip), want, strict=True))


def test_weights_are_unloaded_after_the_pass_when_the_options_say_so(tiny_clip, encode_all, passes):  # noqa: F811
    tiny_clip.unload = True
    done = encode_all(tiny_clip)
    assert passes == [4]
    assert not tiny_clip.encoder.is_loaded
    assert all("cpu, weights unloaded after the encode, as the options say" in one.details for one in done)


def test_a_schedule_of_hooks_is_one_prompt_at_a_time(comfy, tiny_clip, encode_all, passes):  # noqa: F811
    tiny_clip.patcher.forced_hooks = comfy.hooks.HookGroup()
    assert tiny_clip.shares_pass()
    tiny_clip.use_clip_schedule = True
    assert not tiny_clip.shares_pass()
    want = [alone(tiny_clip, *ask) for ask in zip(PROMPTS, REFERENCES, strict=True)]
    passes.clear()
    done = encode_all(tiny_clip)
    assert set(passes) <= {1}
    assert [len(one.conditioning) for one in done] == [len(its) for its in want]
    together = tiny_clip.encode_each([tiny_clip.tokenize(prompt) for prompt in PROMPTS])
    assert [len(each) for each in together] == [len(its) for its in want]


def test_no_prompts_give_nothing(tiny_clip):  # noqa: F811
    assert tiny_clip.encode_each([]) == []


def test_a_clip_that_takes_one_prompt_is_asked_one_by_one(any_clip, tiny_clip):  # noqa: F811
    """ComfyUI's own H3 CLIP; what it cannot show is refused before anything is encoded."""
    own, asked = OwnClip(tiny_clip), [any_clip.Ask(None, prompt, OTHERS) for prompt in PROMPTS]
    asked = [any_clip.Ask(own, ask.prompt, ask.references) for ask in asked]
    done = any_clip.encode_all(asked, "node")
    assert own.prompts == PROMPTS
    assert [one.conditioning for one in done] == [[[prompt, {}]] for prompt in PROMPTS]
    timed = any_clip.Ask(own, "a", PICTURES)
    with pytest.raises(
        ValueError,
        match="node: expected untimed pictures for ComfyUI's own H3 text encoder on clip, got "
        r"one at 1.5 seconds. Connect Load MiniMax H3 Text Encoder \(H3TE\), or turn timed off",
    ):
        any_clip.encode_all([*asked, timed], "node")
    assert own.prompts == PROMPTS


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (5, "MiniMax H3 CLIP: expected one string as the prompt, got int"),
        ("see <|image_pad|>", r"tokens: expected text without vision markers, got <\|image_pad\|>"),
    ],
    ids=["type", "marker"],
)
def test_prompt_that_cannot_be_read_is_numbered_among_several(tiny_clip, encode_all, wrong, told):  # noqa: F811
    for references in ([PICTURES] * 3, [PICTURES, OTHERS, {}]):
        with pytest.raises(ValueError, match=f"^prompt 3 of 3: {told}"):
            encode_all(tiny_clip, prompts=["a", "b", wrong], references=references)
    with pytest.raises(ValueError, match=f"^prompt 2 of 3: {told}"):
        encode_all(tiny_clip, tiny_clip.clone(), prompts=["a", wrong, "c"], references=[PICTURES] * 3)
    with pytest.raises(ValueError, match=f"^{told}"):
        encode_all(tiny_clip, prompts=[wrong], references=[PICTURES])


def test_references_that_cannot_be_read_are_numbered_by_their_first_prompt(tiny_clip, encode_all):  # noqa: F811
    wrong = {"minimax_ref_items": [{"type": "picture"}]}
    with pytest.raises(ValueError, match=r'^prompt 2 of 3: .*items\[0\]: expected type "image", "video" or "audio"'):
        encode_all(tiny_clip, prompts=["a", "b", "c"], references=[{}, wrong, wrong])


def test_clip_of_another_model_is_numbered_among_several(tiny_clip, encode_all):  # noqa: F811
    with pytest.raises(ValueError, match=r"^prompt 2 of 4: node: expected a MiniMax H3 text encoder on clip, got str"):
        encode_all(tiny_clip, "clip")
    with pytest.raises(ValueError, match=r"^node: expected a MiniMax H3 text encoder on clip, got str"):
        encode_all("clip", prompts=["a"], references=[{}])


class OwnClip:
    """What is known of ComfyUI's own: the tokenizer's attribute, and one prompt at a time."""

    def __init__(self, clip):
        self.prompts, self.tokenizer = [], type("Tokenizer", (), {"qwen3vl_32b": clip.tokenizer})()

    def tokenize(self, text, **kwargs):
        self.prompts.append(text)
        return {"own": text}

    def encode_from_tokens_scheduled(self, tokens):
        return [[tokens["own"], {}]]
