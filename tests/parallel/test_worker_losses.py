"""Ranks that fail, die or hang: the client is told which one, and no process is left behind."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import psutil
import pytest
import torch
from h3te_tests.parallel.failing_worker import MARK
from h3te_tests.parallel.workers import StartedWorker
from h3te_tests.worker_calls import Encoding, call, encode, health, job_state, text_request, until

FAILING = Path(__file__).resolve().with_name("failing_worker.py")
OUT_OF_MEMORY, KILLED, LOADING, ASTRAY = range(4)
LONG = 20_000


def failing(worker, rank: int, how: int, place: int = 0):
    request = text_request(health(worker.address), 40)
    request.input_ids[:4] = torch.tensor([MARK, rank, how, place])
    return request


def gone(processes: list[psutil.Process]) -> None:
    until(lambda: not any(lives(process) for process in processes), 40)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module", params=(2, 4))
def enduring(request, shared_checkpoint):
    with StartedWorker(shared_checkpoint, request.param, script=FAILING) as worker:
        yield worker


@pytest.mark.parametrize("place", [0, 1, 4, 10])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_memory_ends_the_job_on_all_and_is_named(enduring, rank, place):
    before = encode(enduring.address, text_request(health(enduring.address)))[1]
    status, text = encode(enduring.address, failing(enduring, rank, OUT_OF_MEMORY, place))
    assert status == 500
    assert text.startswith(f"rank {rank} of {enduring.size}: worker: expected enough memory, got none left"), text
    again = encode(enduring.address, text_request(health(enduring.address)))[1]
    assert torch.equal(again.hidden, before.hidden)


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_rank_that_cannot_load_ends_the_job_on_all_and_they_load_again(enduring, place):
    before = encode(enduring.address, text_request(health(enduring.address)))[1]
    # all ranks have to load: the weights are dropped first
    assert call(enduring.address, "POST", "/unload")[0] == 200
    status, text = encode(enduring.address, failing(enduring, 1, LOADING, place))
    assert (status, text) == (500, f"rank 1 of {enduring.size}: RuntimeError: the disk is gone")
    assert not health(enduring.address).loaded
    again = encode(enduring.address, text_request(health(enduring.address)))[1]
    assert torch.equal(again.hidden, before.hidden)


@pytest.mark.parametrize(("size", "rank"), [(2, 1), (4, 2)])
def test_a_rank_that_is_killed_in_the_middle_is_named_and_the_run_ends(shared_checkpoint, size, rank):
    with StartedWorker(shared_checkpoint, size, script=FAILING) as worker:
        processes = worker.ranks
        status, text = encode(worker.address, failing(worker, rank, KILLED, 3))
        assert (status, f"rank {rank} of {size} died without a word" in text) == (503, True), text
        assert worker.ended() == 1
        gone(processes)


def test_a_rank_that_is_killed_while_nothing_runs_ends_the_run(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 4) as worker:
        processes = worker.ranks
        processes[3].kill()
        assert worker.ended() == 1
        assert "rank 3 of 4 died without a word" in worker.said()
        gone(processes)


def test_a_rank_that_alone_is_told_to_end_ends_the_run(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 2) as worker:
        processes = worker.ranks
        processes[1].terminate()
        worker.ended()
        gone(processes)


def test_a_killed_rank_0_leaves_no_other_behind(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 2) as worker:
        processes = worker.ranks
        running = Encoding(worker.address, text_request(health(worker.address), LONG))
        until(lambda: job_state(worker.address, running.job).state == "running")
        processes[0].kill()
        assert running.outcome()[0] == 0
        assert worker.ended() == 1
        gone(processes)


def test_ranks_do_not_outlive_a_killed_torchrun(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 2) as worker:
        processes = worker.ranks
        worker.launcher.kill()
        gone(processes)
        assert "torchrun cannot be reached any more" in worker.said()


def test_a_rank_that_hangs_is_named_after_its_time(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 2, "--rank-timeout", "3") as worker:
        running = Encoding(worker.address, text_request(health(worker.address), LONG))
        until(lambda: job_state(worker.address, running.job).state == "running")
        hanging = worker.ranks[1]
        hanging.send_signal(signal.SIGSTOP)
        status, text = running.outcome()
        hanging.kill()
        assert (status, "rank 1 of 2 gave no sign of life for 3 seconds" in text) == (503, True), text


def test_ranks_at_different_places_end_the_run_instead_of_waiting(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 2, script=FAILING) as worker:
        status, text = encode(worker.address, failing(worker, 1, ASTRAY, 2))
        assert status == 503, text
        assert "ranks are at different places" in worker.said()
        assert worker.ended() == 1


def test_ranks_of_different_checkpoints_do_not_start(shared_checkpoint, tmp_path):
    other = Path(shutil.copytree(shared_checkpoint, tmp_path / "text_encoder"))
    shard = min(other.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x3c")
    with pytest.raises(AssertionError, match="the checkpoint, options and release of rank 0 on all ranks, got others"):
        StartedWorker(shared_checkpoint, 2, script=FAILING, OTHER_CHECKPOINT=str(other)).__enter__()


@pytest.mark.parametrize("size", [1, 2])
def test_a_worker_that_is_told_to_end_tells_its_clients(shared_checkpoint, size):
    with StartedWorker(shared_checkpoint, size) as worker:
        processes = worker.ranks
        running = Encoding(worker.address, text_request(health(worker.address), LONG))
        until(lambda: job_state(worker.address, running.job).state == "running")
        worker.signal(signal.SIGTERM)
        status, text = running.outcome()
        assert (status, "it was told to end" in text) == (503, True), text
        worker.ended()
        gone(processes)


def test_a_port_that_is_taken_ends_all_ranks_with_what_to_do(shared_checkpoint):
    with StartedWorker(shared_checkpoint, 1) as first, pytest.raises(AssertionError, match="Choose another --port"):
        StartedWorker(shared_checkpoint, 2, "--port", str(first.address[1])).__enter__()
