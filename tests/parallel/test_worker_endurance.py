"""500 requests: no rank grows, no handle and no thread stays."""

from __future__ import annotations

import psutil
import pytest
from h3te.encoder import load_encoder
from h3te_tests.parallel.requests import REQUESTS
from h3te_tests.parallel.workers import StartedWorker
from h3te_tests.tiny_weights import TAP_LAYER
from h3te_tests.worker_calls import begin, call, encode, health, job_state, new_id, sent, text_request, until

REQUESTS_SENT, WARM = 500, 100
MB = 1_000_000
BY_CHANCE = 1  # a connection that is just ending, a thread of the pool that starts late; a leak leaves forty and more


@pytest.mark.parametrize("size", [1, 2, 4])
def test_500_requests_leave_memory_and_handles_as_they_were(shared_checkpoint, tokenizer_folder, size):
    local = load_encoder(shared_checkpoint, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    with StartedWorker(shared_checkpoint, size, "--prefix-gb", "0.002") as worker:
        told = health(worker.address)
        pictured = sent(local.encode(*REQUESTS["pictures"]), told, vision_packing="per_reference", reuse=True)
        for i in range(REQUESTS_SENT):
            if i == WARM:
                before = [measured(p) for p in worker.ranks]
            one(worker, told, pictured, i)
        until(lambda: all(more(measured(p), b) <= BY_CHANCE for p, b in zip(worker.ranks, before, strict=True)))
        after = [measured(p) for p in worker.ranks]
        grown = [(a[0] - b[0]) / MB for a, b in zip(after, before, strict=True)]
        print(size, "MB grown", grown, "MB, handles, threads", after)
        assert max(grown) < 8


def one(worker, told, pictured, i: int) -> None:
    """Of ten requests one has pictures, one reuses, one is refused, one client goes away."""
    if i % 10 == 3:
        assert encode(worker.address, pictured)[0] == 200
    elif i % 10 == 5:
        assert encode(worker.address, text_request(told, checkpoint="0" * 64))[0] == 409
    elif i % 10 == 7:
        job = new_id()
        begin(worker.address, text_request(told, 400), job).close()
        until(lambda: worker_has_ended(worker, job))
    else:
        options = {"vision_packing": "per_reference", "reuse": i % 10 == 8}
        assert encode(worker.address, text_request(told, 60 + i % 50, start=100 + i, **options))[0] == 200


def worker_has_ended(worker, job: str) -> bool:
    status, _ = call(worker.address, "GET", f"/jobs/{job}")
    return status == 404 or job_state(worker.address, job).state in ("cancelled", "done", "failed")


def more(now: tuple[int, int, int], before: tuple[int, int, int]) -> int:
    """Handles or threads beside those that were there."""
    return max(now[1] - before[1], now[2] - before[2])


def measured(process: psutil.Process) -> tuple[int, int, int]:
    return process.memory_info().rss, process.num_fds(), process.num_threads()
