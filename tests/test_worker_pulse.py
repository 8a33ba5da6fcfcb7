"""Who ended a run of several ranks, told from a store: by what each said, or by a count that stands still."""

from __future__ import annotations

import threading
import time

import pytest
from h3te.encoder.parallel.worker import pulse as module
from h3te.encoder.parallel.worker.pulse import FAILED, TORCHRUN_GONE, Pulse
from torch.distributed import HashStore


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(module, "STILL_SECONDS", 0.3)


class Run:
    """Rank 0 over a store, and other ranks that beat as long as they are told to."""

    def __init__(self, size: int, timeout: float = 60):
        self.store, self.size = HashStore(), size
        self.first = Pulse(lambda: self.store, 0, size, timeout)
        self.alive = [threading.Event() for _ in range(size)]
        self.others = {i: Pulse(lambda: self.store, i, size, timeout) for i in range(1, size)}
        for i in self.others:
            self.alive[i].set()
            threading.Thread(target=self._beat, args=(i,), daemon=True).start()
        self.reasons: list[str] = []
        self.ended = threading.Event()
        self.first.start(self._end)

    def _beat(self, rank: int) -> None:
        while self.alive[rank].is_set():
            self.store.add(f"h3te/alive/{rank}", 1)
            time.sleep(0.02)

    def _end(self, why: str) -> None:
        self.reasons.append(why)
        self.ended.set()

    def close(self) -> None:
        for event in self.alive:
            event.clear()


@pytest.fixture
def run(request):
    runs = []

    def start(*arguments) -> Run:
        runs.append(Run(*arguments))
        return runs[-1]

    yield start
    for each in runs:
        each.close()


def test_a_rank_that_dies_without_a_word_is_named_whatever_the_others_say(run):
    four = run(4)
    four.alive[2].clear()
    four.others[1].note("it was told to end")
    four.others[3].note("lost contact")
    assert four.first.lost() == "rank 2 of 4 died without a word (killed, or out of memory)"


def test_a_rank_that_says_how_it_failed_is_quoted(run):
    two = run(2)
    two.others[1].note(f"{FAILED}no such GPU")
    assert two.ended.wait(5)
    assert two.reasons == ["rank 1 ended (no such GPU)"]
    assert two.first.lost() == "rank 1 ended (no such GPU)"


def test_nobody_is_lost_where_all_were_told_to_end_or_live(run):
    four = run(4)
    assert four.first.lost() is None
    four.others[2].note("it was told to end")
    assert four.first.lost() == "rank 2 ended (it was told to end)"
    for other in four.others.values():
        other.note("it was told to end")
    assert four.first.lost() is None


def test_a_rank_that_hangs_is_lost_after_its_time(run):
    two = run(2, 0.5)
    time.sleep(0.7)
    assert two.reasons == []
    two.alive[1].clear()
    assert two.ended.wait(5)
    assert two.reasons == ["rank 1 of 2 gave no sign of life for 0.5 seconds"]


def test_the_others_watch_rank_0_alone(run):
    four, told = run(4, 0.5), []
    other = Pulse(lambda: four.store, 3, 4, 0.5)
    other.start(told.append)
    four.alive[1].clear()
    assert four.ended.wait(5)
    time.sleep(0.7)
    assert told == []


def test_a_store_that_is_gone_ends_the_rank():
    class Gone:
        def add(self, key, count):
            raise RuntimeError("Connection reset by peer")

        def set(self, key, value):
            raise RuntimeError("Connection reset by peer")

    told, ended = [], threading.Event()
    alone = Pulse(Gone, 0, 2, 60)
    alone.start(lambda why: (told.append(why), ended.set()))
    assert ended.wait(5)
    assert told == [TORCHRUN_GONE]
    alone.note("ends")
