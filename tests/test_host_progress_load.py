"""Loading: by bytes on the bar and the line; Stop between weights leaves nothing half loaded, and the next run right.

`meta` stands for an accelerator: weights are moved there and back as ComfyUI's patcher moves them.
"""

from __future__ import annotations

import re

import pytest
import torch
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.one_device import META
from h3te_tests.packed_host import leaves
from h3te_tests.page import page  # noqa: F401 (fixture)
from h3te_tests.test_host_clip import lora


def encode(clip) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox"))


@pytest.fixture
def far(comfy, tiny_clip, monkeypatch):  # noqa: F811
    """The tiny clip with `meta` as its device, on which ComfyUI loads as much as `far.budget` bytes of it."""

    def load(models, memory_required):
        models[0].partially_load(models[0].load_device, tiny_clip.budget)

    monkeypatch.setattr(comfy.model_management, "load_models_gpu", load)
    tiny_clip.patcher.load_device, tiny_clip.budget = META, 10**12
    return tiny_clip


@pytest.fixture
def stopped_at(comfy, monkeypatch):  # noqa: F811
    """stopped_at(what, count): Stop is pressed with the step of that name and number; gives all steps so far."""
    from h3te.nodes.host.progress import HostProgress

    real, steps = HostProgress.__call__, []

    def press(what: str, count: int) -> list:
        def call(self, done, total, said):
            steps.append(said)
            if steps.count(what) == count and said == what:
                comfy.model_management.interrupt_current_processing(True)
            real(self, done, total, said)

        monkeypatch.setattr(HostProgress, "__call__", call)
        return steps

    return press


def moved_bytes(clip) -> int:
    return sum(leaf.weight.nbytes + (0 if leaf.bias is None else leaf.bias.nbytes) for leaf in leaves(clip))


def test_reading_into_memory_is_told_in_bytes_and_then_the_pass(
    page,  # noqa: F811
    tiny_checkpoint,
    tokenizer_folder,
    monkeypatch,
):
    from h3te.encoder.checkpoint import files

    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 20)
    clip = make_tiny_clip(tiny_checkpoint, tokenizer_folder, reader="read")
    encode(clip)
    size = f"{clip.encoder.weight_bytes / 1e9:.2f}"
    reading = [line for line in page.lines if line.startswith("reading weights: ")]
    assert reading[-1] == f"reading weights: {size} of {size} GB"
    assert page.lines[len(reading)].startswith("layer 1 of 5")
    bar = page.only_bar()
    assert bar[-1] == (10, 10)
    assert (5, 10) in bar  # between the two


def test_weights_that_are_mapped_are_not_worth_a_bar(page, tiny_clip):  # noqa: F811
    tiny_clip.load_model(tiny_clip.tokenize("a fox"))
    assert (page.lines, page.bars) == ([], [])


def test_placing_is_told_in_bytes_of_all_that_is_placed(page, far):  # noqa: F811
    far.load_model()
    placed = page.lines
    assert all(re.fullmatch(r"placing weights: 0\.\d\d of 0\.\d\d GB", line) for line in placed)
    size = f"{moved_bytes(far) / 1e9:.2f}"
    assert placed[-1] == f"placing weights: {size} of {size} GB"
    assert {line.split()[4] for line in placed} == {size}  # the whole is known from the first on
    assert page.bars[0][-1] == (5, 10)  # half of the bar is the pass's
    assert all(leaf.weight.device == META for leaf in leaves(far))


def test_a_part_that_fits_is_told_as_the_whole_that_is_placed(page, far):  # noqa: F811
    far.budget = moved_bytes(far) // 2
    far.load_model()
    done, total = page.lines[-1].split()[2], page.lines[-1].split()[4]
    assert done == total != f"{moved_bytes(far) / 1e9:.2f}"
    assert 0 < far.patcher.loaded_size() < far.budget


@pytest.mark.parametrize("count", [1, 20, 60])
def test_stop_while_weights_are_placed_takes_all_of_them_back(page, comfy, far, stopped_at, count):  # noqa: F811
    expected = encode(make_near(far))
    far.patcher.detach()
    far.patcher.load_device = META
    steps = stopped_at("placing weights", count)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        far.load_model()
    assert steps.count("placing weights") == count  # no weight was placed after it
    assert all(leaf.weight.device == CPU for leaf in leaves(far))
    assert not any(getattr(leaf, "comfy_patched_weights", False) for leaf in leaves(far))
    assert far.patcher.loaded_size() == 0
    far.load_model()
    assert all(leaf.weight.device == META for leaf in leaves(far))
    far.patcher.detach()
    assert torch.equal(encode(make_near(far)), expected)


def make_near(clip):
    clip.patcher.load_device = CPU
    return clip


def test_patching_is_told_by_weights_and_stop_undoes_it(page, comfy, tiny_clip, stopped_at):  # noqa: F811
    plain = encode(tiny_clip)
    (_, patched) = comfy.sd.load_lora_for_models(None, tiny_clip, lora(), 0.0, 1.0)
    count = len(patched.patcher.patches)
    stopped_at("patching weights", 1)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(patched)
    assert patched.patcher.loaded_size() == 0
    assert torch.equal(encode(tiny_clip), plain)
    page.sent.clear(), page.bars.clear()
    assert not torch.equal(encode(patched), plain)
    assert f"patching weights: {count} of {count}" in page.lines
    assert page.only_bar()[-1] == (10, 10)


def test_stop_while_offloaded_weights_are_pinned_takes_all_back(comfy, far, monkeypatch):  # noqa: F811
    far.budget, pinned = moved_bytes(far) // 2, []

    def pin(patcher, key):
        pinned.append(key)
        if len(pinned) == 3:
            comfy.model_management.interrupt_current_processing(True)

    monkeypatch.setattr(comfy.model_patcher.ModelPatcher, "pin_weight_to_device", pin)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        far.load_model()
    assert len(pinned) == 3
    assert all(leaf.weight.device == CPU for leaf in leaves(far))


def test_moving_back_is_neither_counted_nor_stopped(page, comfy, far):  # noqa: F811
    far.load_model()
    said = len(page.lines)
    comfy.model_management.interrupt_current_processing(True)
    far.patcher.detach()
    comfy.model_management.interrupt_current_processing(False)
    assert len(page.lines) == said
    assert all(leaf.weight.device == CPU for leaf in leaves(far))
