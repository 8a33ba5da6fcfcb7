"""The pager: the next layer's weights come while the present one computes, two at most, and none stays behind."""

from __future__ import annotations

import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from h3te.encoder import copies
from h3te.encoder.copies import StreamCopies
from h3te.encoder.leaf import Leaf
from h3te_tests.golden_cases import CASES, references
from h3te_tests.tiny_weights import TAP_LAYER

CASE = CASES["mixed_in_request_order"]
CPU = torch.device("cpu")


@pytest.fixture
def streamed(load_small, tiny_checkpoint):
    return load_small(tiny_checkpoint, reader="stream")


def hidden(encoder, progress=None) -> torch.Tensor:
    return encoder.encode(CASE["prompt"], references(CASE), progress=progress).hidden


def staged(encoder) -> list[str]:
    return [name for name, leaf in encoder.named_modules() if isinstance(leaf, Leaf) and leaf.staged]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_one_layer_is_lent_at_a_time_and_none_afterwards(streamed):
    seen = []
    streamed.encode(CASE["prompt"], references(CASE), progress=lambda *call: seen.append(staged(streamed)))
    assert all(seen)
    for names in seen:
        assert len({re.match(r".*(layers|blocks)\.\d+\.|.*deepstack_merger", name)[0] for name in names}) <= 2
        assert len({name for name in names if "down_proj" in name or "attn.qkv" in name}) == 1
    assert staged(streamed) == threads() == []


def test_mapped_weights_on_a_cpu_need_no_thread(load_small, tiny_checkpoint):
    encoder, seen = load_small(tiny_checkpoint), []
    hidden(encoder, lambda *call: seen.extend(threads()))
    assert seen == []


def test_each_weight_is_read_once_for_several_requests_and_each_gets_what_it_gets_alone(streamed, monkeypatch):
    given = [streamed.encode(prompt).presentation for prompt in ("a fox", "a much longer prompt about an owl", "")]
    given.append(streamed.encode(CASE["prompt"], references(CASE)).presentation)
    alone = [streamed.encode_presentation(one).hidden for one in given]
    files, read = streamed.source.files, []
    whole = files.read
    monkeypatch.setattr(files, "read", lambda entry, *rest: read.append(entry.stored_name) or whole(entry, *rest))
    together = streamed.encode_presentations(given)
    assert all(torch.equal(one.hidden, want) for one, want in zip(together, alone, strict=True))
    assert sorted(read) == sorted(set(read))


@pytest.mark.parametrize("step", range(0, 6 + TAP_LAYER, 3))
def test_stop_at_any_step_leaves_nothing_behind_and_the_encoder_usable(streamed, step):
    expected = hidden(streamed)

    class Stopped(BaseException):
        pass

    def stop(done: int, total: int, what: str) -> None:
        if done == step + 1:
            raise Stopped

    with pytest.raises(Stopped):
        hidden(streamed, stop)
    assert staged(streamed) == threads() == []
    assert torch.equal(hidden(streamed), expected)


def test_a_fault_at_any_reading_leaves_nothing_behind_and_the_encoder_usable(streamed, monkeypatch):
    expected, files = hidden(streamed), streamed.source.files
    whole, counted = files.read, SimpleNamespace(calls=0, fails=0)

    def read(entry, *rest):
        counted.calls += 1
        if counted.calls == counted.fails:
            raise OSError("the disk is gone")
        return whole(entry, *rest)

    monkeypatch.setattr(files, "read", read)
    hidden(streamed)
    for fails in range(1, counted.calls + 1, 7):
        counted.calls, counted.fails = 0, fails
        with pytest.raises(OSError, match="the disk is gone"):
            hidden(streamed)
        assert staged(streamed) == threads() == []
    counted.fails = 0
    assert torch.equal(hidden(streamed), expected)


def test_a_file_that_changes_during_an_encode_is_an_error(load_small, tiny_checkpoint, tmp_path):
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "text_encoder"))
    encoder = load_small(folder, reader="stream")
    shard = folder / "model-00001-of-00003.safetensors"

    def replace(done: int, total: int, what: str) -> None:
        if what.startswith("layer 1 "):
            shutil.copy(shard, folder / "other")
            (folder / "other").replace(shard)

    with pytest.raises(RuntimeError, match="expected the file as it was when the text encoder was loaded"):
        hidden(encoder, replace)


# copies on a stream, with a device that only writes down what it is asked


class RecordedDevice:
    def __init__(self, log: list[str]):
        self.log, self.events = log, 0
        self.Stream = lambda device: "side"
        self.Event = self._event

    @contextmanager
    def stream(self, stream):
        yield

    def current_stream(self, device):
        return SimpleNamespace(wait_event=lambda event: self.log.append(f"wait {event.name}"))

    def _event(self):
        self.events += 1
        name = f"e{self.events}"
        return SimpleNamespace(
            name=name,
            record=lambda stream: self.log.append(f"record {name}"),
            synchronize=lambda: self.log.append(f"synchronize {name}"),
        )


@pytest.fixture
def stream_copies(monkeypatch):
    log: list[str] = []
    monkeypatch.setattr(torch, "get_device_module", lambda device: RecordedDevice(log))
    return StreamCopies(CPU), log


def page(value: int) -> list[dict[str, torch.Tensor]]:
    return [{"weight": torch.full((3, 5), value, dtype=torch.uint8), "weight_scale": torch.tensor(value / 7)}]


def test_a_slot_is_filled_again_only_when_its_page_was_computed_with(stream_copies):
    made, log = stream_copies
    for index in range(4):
        moved = made.fetch(index, page(index))
        assert torch.equal(moved[0]["weight"], page(index)[0]["weight"])
        assert torch.equal(moved[0]["weight_scale"], page(index)[0]["weight_scale"])
        made.arrived(index)
        made.used(index)
    # copies of page 0: e1, computed with: e2; page 1: e3, e4; page 2 waits for e2
    assert log == [
        "record e1", "wait e1", "record e2", "record e3", "wait e3", "record e4",
        "synchronize e2", "record e5", "wait e5", "record e6", "synchronize e4", "record e7", "wait e7", "record e8",
    ]  # fmt: skip


def test_without_pinned_memory_copies_are_plain_and_said_once(stream_copies, monkeypatch, caplog):
    made, _ = stream_copies
    empty = torch.empty

    def unpinnable(*shape, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("no pinned memory here")
        return empty(*shape, **options)

    monkeypatch.setattr(copies.torch, "empty", unpinnable)
    for index in range(3):
        assert torch.equal(made.fetch(index, page(index))[0]["weight"], page(index)[0]["weight"])
    assert caplog.text.count("weights are copied from ordinary memory") == 1


def test_pinned_memory_is_made_for_the_largest_page_and_kept(stream_copies, monkeypatch):
    made, _ = stream_copies
    empty, pinned = torch.empty, []

    def recorded(*shape, pin_memory=False, **options):
        if pin_memory:
            pinned.append(shape[0])
        return empty(*shape, **options)

    monkeypatch.setattr(copies.torch, "empty", recorded)
    for index in range(6):
        made.fetch(index, page(index))
    assert pinned == [128, 128]  # two parts, each with room to 64 bytes; two slots
    made.release()
