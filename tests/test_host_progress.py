"""The bar, the line on the node and the times of an encode: what is done is said, in order, and nothing runs back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.page import page  # noqa: F401 (fixture)
from h3te_tests.test_host_clip import _node, lora
from h3te_tests.test_host_retry import runs_out  # noqa: F401 (fixture)

BLOCKS, LAYERS = 6, 5
RESIDENT = ", 0.0 GB resident"
STEPS = [f"vision block {i} of {BLOCKS}{RESIDENT}" for i in range(1, BLOCKS + 1)]
STEPS += [f"layer {i} of {LAYERS}{RESIDENT}" for i in range(1, LAYERS + 1)]


def encode(clip, *pictures) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox", images=list(pictures)))


# the line and the bar


def test_every_block_and_layer_is_said_to_the_node_that_runs(page, tiny_clip):  # noqa: F811
    encode(tiny_clip, picture(1))
    assert page.lines[:-1] == ["preparing pictures 1 of 1", *STEPS]
    assert page.lines[-1].startswith("encoded in 0.")
    assert page.lines[-1].endswith(" s, 0.0 GB resident")
    assert page.only_bar() == [(n, BLOCKS + LAYERS) for n in range(1, BLOCKS + LAYERS + 1)]


def test_every_picture_is_said_while_it_is_made_ready(page, tiny_clip):  # noqa: F811
    tiny_clip.tokenize("a fox", images=[picture(1), picture(2), picture(3)])
    assert page.lines == [f"preparing pictures {n} of 3" for n in (1, 2, 3)]


def test_lines_come_a_few_times_a_second_but_for_the_first_and_the_last_of_their_kind(page, monkeypatch):  # noqa: F811
    from h3te.nodes.host import node_text
    from h3te.nodes.host.progress import HostProgress

    clock = [0.0]
    monkeypatch.setattr(node_text, "PAUSE", 0.25)
    monkeypatch.setattr(node_text, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    progress = HostProgress()
    for done in range(1, 51):
        clock[0] += 1 / 64
        progress(done, 50, f"layer {done} of 50")
    assert page.lines == [f"layer {done} of 50" for done in (1, 17, 33, 49, 50)]


def test_progress_that_is_not_to_be_shown_is_not(page, tiny_clip):  # noqa: F811
    from h3te.nodes.host.progress import HostProgress

    progress = HostProgress(show=False)
    progress(1, 2, "layer 1 of 2")
    progress.finish()
    assert (page.sent, page.bars) == ([], [])
    assert set(progress.seconds) == {"decoder"}


@pytest.mark.parametrize("lacks", ["server", "its instance", "node"])
def test_nothing_is_said_where_nobody_listens(page, tiny_clip, monkeypatch, lacks):  # noqa: F811
    from comfy_execution import utils

    if lacks == "node":
        monkeypatch.setattr(utils, "get_executing_context", lambda: None)
    elif lacks == "server":
        monkeypatch.delitem(sys.modules, "server")
    else:
        monkeypatch.setattr(sys.modules["server"].PromptServer, "instance", None)
    assert encode(tiny_clip).isfinite().all()
    assert page.sent == []


def test_what_is_said_is_text_and_what_was_shown_in_the_same_run_stands_below(page):  # noqa: F811
    from h3te.nodes.host import node_text, report

    report.show("7", ["<b>two</b>", "lines"])
    node_text.say("layer <1> of 2")
    assert page.sent[1] == ("7", "<span>layer &lt;1&gt; of 2<br>&lt;b&gt;two&lt;/b&gt;<br>lines</span>")
    assert page.texts[1] == "layer <1> of 2\n<b>two</b>\nlines"
    with page.again():
        node_text.say("layer 1 of 2")
    assert page.texts[2] == "layer 1 of 2"


@pytest.mark.parametrize(
    "text",
    [
        "my_file_name_2",
        "**not bold**",
        "![a picture](x.png)",
        "[a link](x)",
        "`code`",
        "~~struck~~",
        "back\\slash",
        "&amp;",
    ],
)
def test_markdown_in_what_is_said_is_text(page, text):  # noqa: F811
    """Nodes 2.0 reads Markdown, the classic canvas HTML."""
    from h3te.nodes.host import node_text

    node_text.say(text)
    (sent,) = (sent for _, sent in page.sent)
    assert not set(sent) & set("\\`*_[]~")
    assert page.texts == [text]


def test_text_of_another_node_is_not_put_below(page):  # noqa: F811
    from h3te.nodes.host import node_text

    node_text.show("8", "of a node that ran before")
    node_text.say("layer 1 of 2")
    assert page.sent == [("8", "<span>of a node that ran before</span>"), ("7", "<span>layer 1 of 2</span>")]


def test_final_text_of_our_nodes_stays_last(page, comfy, tiny_clip, monkeypatch):  # noqa: F811
    from h3te.nodes.encode_references import EncodeReferences

    monkeypatch.setattr(EncodeReferences, "hidden", SimpleNamespace(unique_id="7"))
    given = {"prompt": "a fox of <Picture 1>", "width": 128, "height": 96, "length": 5, "ref_image_size": "match"}
    batch = {"ref_images": {"ref_image_0": torch.cat([picture(1), picture(2)])}}
    done = EncodeReferences.execute(clip=tiny_clip, **given, **batch)
    (final,) = done.ui["text"]
    assert page.texts[-1] == final
    assert page.lines[:2] == ["resizing ref_image_0, 1 of 2", "resizing ref_image_0, 2 of 2"]
    known = next(i for i, text in enumerate(page.texts) if "Picture 1 = " in text)
    assert page.lines[known + 1 : known + 3] == ["preparing pictures 1 of 2", "preparing pictures 2 of 2"]
    layer = next(text for text in page.texts if text.startswith("layer 5 of 5"))
    assert layer == f"layer 5 of 5{RESIDENT}\n{page.texts[known]}"  # sizes and costs stay to be read meanwhile


def test_answer_from_the_cache_is_said_too(page, comfy, tiny_clip, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tiny_clip, "cache", lambda: SimpleNamespace(answers=lambda batches: [{"cond": torch.ones(1)}]))
    encode(tiny_clip)
    assert page.lines == ["answered from the cache: no weight was read"]
    assert page.bars == []


# several passes


def test_prompts_of_one_pass_share_it(page, tiny_clip):  # noqa: F811
    tiny_clip.encode_each([tiny_clip.tokenize(text) for text in ("a fox", "an owl", "a hen")])
    assert page.lines[0] == f"layer 1 of {LAYERS}{RESIDENT}, 3 prompts in one pass"
    assert len(page.lines) == LAYERS + 1
    assert page.only_bar()[-1] == (LAYERS, LAYERS)


@pytest.mark.parametrize("asked", ["together", "one by one"])
def test_passes_of_a_list_are_numbered_and_share_a_bar(page, tiny_clip, asked):  # noqa: F811
    from h3te.nodes.host.any_clip import Ask, encode_all

    pytest.importorskip("transformers")
    tiny_clip.backend = "official"
    prompts, images = ("a fox", "an owl"), {"images": [picture(1)]}
    if asked == "together":
        tiny_clip.encode_each([tiny_clip.tokenize(text, **images) for text in prompts])
    else:
        encode_all([Ask(tiny_clip, text, images) for text in prompts], "node")
    lines = [line for line in page.lines if "layer" in line or "block" in line]
    assert lines == [f"prompt {n} of 2, {step}" for n in (1, 2) for step in STEPS]
    assert page.only_bar()[-1] == (1000, 1000)
    assert len(page.only_bar()) == 2 * (BLOCKS + LAYERS)


def test_stretches_of_a_schedule_are_numbered_and_share_a_bar(page, comfy, tiny_clip):  # noqa: F811
    hooks = comfy.hooks.create_hook_lora(lora=lora(), strength_model=1.0, strength_clip=1.0)
    frames = comfy.hooks.HookKeyframeGroup()
    for start in (0.0, 0.5, 0.75):
        frames.add(comfy.hooks.HookKeyframe(strength=1.0 - start, start_percent=start))
    hooks.set_keyframes_on_hooks(frames)
    (hooked,) = _node("nodes_hooks", "SetClipHooks")().apply_hooks(
        tiny_clip, schedule_clip=True, apply_to_conds=True, hooks=hooks
    )
    for add_dict, count in ({}, 3), ({"start_percent": 0.6}, 2):
        page.sent.clear(), page.bars.clear()
        hooked.encode_from_tokens_scheduled(hooked.tokenize("a fox"), add_dict=add_dict)
        steps = [line.partition(RESIDENT)[0] for line in page.lines if "layer" in line]
        assert steps == [f"stretch {n} of {count}, layer {i} of {LAYERS}" for n in range(1, count + 1) for i in
                         range(1, LAYERS + 1)]  # fmt: skip
        assert page.only_bar()[-1] == (1000, 1000)


def test_bar_stands_still_while_a_pass_is_repeated_and_the_line_says_so(page, tiny_clip, runs_out):  # noqa: F811
    with runs_out(tiny_clip):
        encode(tiny_clip)
    assert page.only_bar() == [(n, LAYERS) for n in range(1, LAYERS + 1)]
    again = [line for line in page.lines if line.startswith("again with all weights offloaded, layer ")]
    assert len(again) == LAYERS


def test_a_pass_that_has_less_to_do_ends_at_the_end_of_the_bar(page):  # noqa: F811
    """A prefix spares the vision tower, which is known only when the pass begins."""
    from h3te.nodes.host.progress import HostProgress

    progress = HostProgress(loads=["placing weights"])
    progress.steps = 20
    for done in (1, 2, 4):
        progress(done, 4, "placing weights")
    for done in (1, 2, 3):
        progress(done, 3, f"layer {done} of 3")
    assert page.only_bar() == [(n, 40) for n in (5, 10, 20, 26, 33, 40)]


def test_a_pass_without_any_step_ends_at_the_end_of_the_bar(page):  # noqa: F811
    from h3te.nodes.host.progress import HostProgress
    from h3te.nodes.host.turns import turns

    with turns(2, "prompt") as each:
        for number in each.over([1, 2]):
            progress = HostProgress()
            if number == 1:
                progress(1, 1, "layer 1 of 1")
            progress.finish()
    assert page.only_bar() == [(500, 1000), (1000, 1000)]


def test_turns_within_turns_share_one_bar(page):  # noqa: F811
    from h3te.nodes.host.progress import HostProgress
    from h3te.nodes.host.turns import turns

    with turns(2, "prompt") as prompts:
        for _ in prompts.over("ab"):
            with turns(5, "stretch") as stretches, turns(1, "pass"):
                for _ in stretches.over(range(5)):
                    HostProgress()(1, 1, "layer 1 of 1")
    assert [value for value, _ in page.only_bar()] == list(range(100, 1001, 100))
    assert page.lines[6] == "prompt 2 of 2, stretch 2 of 5, layer 1 of 1"


# times


def test_times_are_of_the_parts_that_took_time(page, tiny_clip):  # noqa: F811
    encode(tiny_clip, picture(1))
    first = tiny_clip.run.seconds
    assert list(first) == ["load", "vision", "decoder"]
    assert all(seconds > 0 for seconds in first.values())
    assert f"load {first['load']:.2f} s, vision {first['vision']:.2f} s, decoder" in "\n".join(tiny_clip.run.lines())
    encode(tiny_clip, picture(1))
    assert list(tiny_clip.run.seconds) == ["vision", "decoder"]
    encode(tiny_clip)
    assert list(tiny_clip.run.seconds) == ["decoder"]


def test_time_between_two_steps_belongs_to_the_later_one(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host import progress as module

    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    progress = module.HostProgress()
    progress.begin()
    for seconds, what in (2.0, "weights"), (1.0, "vision block 1 of 2"), (0.5, "vision block 2 of 2"), (4, "layer 1"):
        clock[0] += seconds
        progress(1, 1, what)
    assert progress.seconds == {"load": 2.0, "vision": 1.5, "decoder": 4.0}
    assert module.times(progress.seconds) == "load 2.00 s, vision 1.50 s, decoder 4.00 s"


class FakeAccelerator:
    """Its events end when they are waited for."""

    def __init__(self):
        self.made = self.done = 0

    def Event(self):
        return SimpleNamespace(record=lambda stream: self._record(), synchronize=self._end)

    def _record(self) -> None:
        self.made += 1

    def _end(self) -> None:
        self.done += 1

    def current_stream(self, device):
        return None


def test_cpu_runs_two_steps_ahead_of_an_accelerator_and_waits_at_the_end_of_each_part(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host.progress import HostProgress

    fake = FakeAccelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    progress, behind = HostProgress(device=torch.device("cuda", 0)), []
    for done in range(1, 7):
        what = f"vision block {done} of 4" if done < 5 else f"layer {done - 4} of 2"
        progress(done, 6, what)
        behind.append(fake.made - fake.done)
    assert behind == [1, 2, 2, 0, 1, 0]


# Stop


def test_stop_is_heard_within_a_layer(page, comfy, tiny_clip):  # noqa: F811
    """A layer of a long prompt takes a minute on a CPU."""
    layer = tiny_clip.encoder.model.language_model.layers[1]

    def press(*_) -> None:
        comfy.model_management.interrupt_current_processing(True)

    expected = encode(tiny_clip)
    page.sent.clear()
    hook = layer.self_attn.o_proj.register_forward_pre_hook(press)
    with hook, pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(tiny_clip)
    assert page.lines[-2:] == [f"layer 1 of {LAYERS}{RESIDENT}", f"stopped at layer 1 of {LAYERS}{RESIDENT}"]
    assert torch.equal(encode(tiny_clip), expected)


def test_stop_before_anything_says_nothing(page, comfy, tiny_clip):  # noqa: F811
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(tiny_clip)
    assert page.sent == []
