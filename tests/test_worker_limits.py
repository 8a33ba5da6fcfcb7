"""What a worker refuses, whom it does not wait for, and what is left of those who leave."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from dataclasses import replace

import pytest
import torch
from h3te.encoder.parallel.protocol import JOB_HEADER, EncodeReply
from h3te.encoder.parallel.worker.board import Board, Refused
from h3te.encoder.parallel.worker.engine import token_tags
from h3te.encoder.parallel.worker.settings import Limits, Settings
from h3te_tests.local_worker import LocalWorker
from h3te_tests.tiny_weights import TAP_LAYER
from h3te_tests.worker_calls import (
    Encoding,
    begin,
    call,
    encode,
    health,
    job_state,
    message,
    new_id,
    received,
    text_request,
    until,
)

LIMITS = Limits(
    body_bytes=400_000, tokens=20_000, queue=2, answers=2, stall_seconds=0.5, grace_seconds=20, connections=40
)
TOKEN = "a-token-of-tests"


class Gate:
    """Stands before the encoder: jobs run, step after step, until it is opened."""

    def __init__(self, engine):
        self.engine, self.encode = engine, engine.encode
        self.open, self.entered, self.left = threading.Event(), threading.Event(), 0
        engine.encode = self

    def __call__(self, request, step):
        self.entered.set()
        try:
            while not self.open.wait(0.01):
                step(1, 9, "layer 1 of 9")
        finally:
            self.left += 1
        return self.encode(request, step)


@pytest.fixture(scope="module")
def running(tiny_checkpoint):
    with LocalWorker(Settings(tiny_checkpoint, tap_layer=TAP_LAYER, device="cpu", limits=LIMITS)) as worker:
        yield worker


@pytest.fixture
def worker(running):
    yield running
    until(lambda: not running.service.board._jobs)  # whatever a test did, nothing is held afterwards
    assert running.service.board._running is None or not running.service.board._waiting
    assert encode(running.address, text_request(health(running.address)))[0] == 200


@pytest.fixture
def gate(running):
    standing = Gate(running.engine)
    yield standing
    standing.open.set()
    running.engine.encode = standing.encode


@pytest.fixture
def large_answers(running, monkeypatch):
    """Made of nothing, at once: 19,000 tokens take many seconds."""

    def zeros(request, step):
        width = running.engine.encoder.config.text.hidden_size
        hidden = torch.zeros(len(request.input_ids), width, dtype=torch.bfloat16)
        return EncodeReply(hidden, token_tags(request.input_ids))

    monkeypatch.setattr(running.engine, "encode", zeros)


def request(worker, tokens: int = 12, **changes):
    return text_request(health(worker.address), tokens, **changes)


def test_a_body_over_the_limit_is_refused_before_it_is_sent(worker):
    sent = request(worker, 60_000)
    sock = begin(worker.address, sent, new_id(), most=100)
    answer = sock.recv(65_536)
    sock.close()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"expected at most 400,000 bytes, got 480," in answer
    assert encode(worker.address, sent)[0] == 413


def test_too_many_tokens_are_refused(worker):
    status, text = encode(worker.address, request(worker, 20_001))
    assert (status, "expected at most 20,000 tokens, got 20,001" in text) == (413, True)


def test_a_full_queue_is_refused_and_the_others_are_answered_in_order(worker, gate):
    first = Encoding(worker.address, request(worker))
    assert gate.entered.wait(20)
    waiting = []
    for _ in range(LIMITS.queue):
        waiting.append(Encoding(worker.address, request(worker)))
        until(lambda: health(worker.address).waiting == len(waiting))
    until(lambda: [job_state(worker.address, job.job).position for job in waiting] == [1, 2])
    assert job_state(worker.address, first.job).what == "layer 1 of 9"
    status, text = encode(worker.address, request(worker))
    assert (status, "expected a free place in the queue, got 2 jobs" in text) == (503, True)
    gate.open.set()
    assert [job.outcome()[0] for job in (first, *waiting)] == [200, 200, 200]


def test_bodies_in_memory_are_bounded():
    async def admitted() -> str:
        board = Board(Limits(body_bytes=100, queue=8), asyncio.get_running_loop())
        jobs = [board.admit(new_id(), 100), board.admit(new_id(), 99)]
        with pytest.raises(Refused, match="expected room for 2 bytes beside 199, got none") as caught:
            board.admit(new_id(), 2)
        board.leave(jobs[0])
        board.admit(new_id(), 101)
        return caught.value.status

    assert asyncio.run(admitted()) == 503


def test_a_sender_that_stalls_is_sent_away_and_holds_nobody(worker):
    job = new_id()
    sock = begin(worker.address, request(worker, 2000), job, most=5000)
    assert until(lambda: job_state(worker.address, job)).what == "receiving"
    assert encode(worker.address, request(worker))[0] == 200
    answer = received(sock)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"bytes in time" in answer
    assert job_state(worker.address, job).state == "failed"


def test_a_sender_that_trickles_is_sent_away_too(worker, monkeypatch):
    monkeypatch.setattr(worker.service._server, "_limits", replace(LIMITS, grace_seconds=1))
    job, sent = new_id(), request(worker, 2000)
    sock, body = begin(worker.address, sent, job, most=5000), sent.to_bytes()
    began = time.monotonic()
    until(
        lambda: (
            sock.send(body[5000:5001]) and time.sleep(0.1) is None and job_state(worker.address, job).state == "failed"
        )
    )
    assert 0.9 < time.monotonic() - began < 10
    assert received(sock).startswith(b"HTTP/1.1 408")


def test_a_body_that_ends_early_is_let_go(worker):
    job = new_id()
    sock = begin(worker.address, request(worker, 2000), job, most=5000)
    until(lambda: worker.service.board._jobs)
    sock.close()
    until(lambda: not worker.service.board._jobs)


def test_clients_that_leave_while_their_requests_are_checked_leave_one_body_at_most(worker, monkeypatch):
    server, check, checked = worker.service._server, worker.service._server._check, threading.Event()
    begun = []

    def slow(given):
        begun.append(given)
        assert checked.wait(20)
        check(given)

    monkeypatch.setattr(server, "_check", slow)
    for _ in range(4):
        sock = begin(worker.address, request(worker, 2000), new_id())
        until(lambda: any(job.state.what == "receiving" for job in worker.service.board._jobs.values()))
        time.sleep(0.2)
        sock.close()
        until(lambda: not worker.service.board._jobs)
    checked.set()
    assert len(begun) == 1


def test_a_reader_that_stalls_holds_neither_the_queue_nor_the_answer(worker, large_answers):
    sock = begin(worker.address, request(worker, 19_000), new_id())
    until(lambda: worker.service._server._answers._open)
    for _ in range(3):
        assert encode(worker.address, request(worker))[0] == 200
    until(lambda: not worker.service._server._answers._open, 10)
    assert len(received(sock)) < 19_000 * 128


def test_of_too_many_unread_answers_the_oldest_is_given_up(worker, large_answers, monkeypatch):
    monkeypatch.setattr(worker.service._server._answers, "_limits", replace(LIMITS, stall_seconds=60, grace_seconds=60))
    answers = worker.service._server._answers
    jobs, socks = [new_id() for _ in range(3)], []
    for i, job in enumerate(jobs):
        socks.append(begin(worker.address, request(worker, 19_000), job))
        until(
            lambda i=i, job=job: job_state(worker.address, job).state == "done" and len(answers._open) == min(i + 1, 2)
        )
    sizes = [len(received(sock)) for sock in (socks[0], socks[2], socks[1])]
    assert sizes[0] < 19_000 * 128 < min(sizes[1:])


def test_a_cancelled_job_ends_at_the_next_step(worker, gate):
    running = Encoding(worker.address, request(worker))
    assert gate.entered.wait(20)
    assert call(worker.address, "POST", f"/jobs/{running.job}/cancel")[0] == 200
    status, text = running.outcome()
    assert (status, "got a cancel" in text) == (410, True)
    assert job_state(worker.address, running.job).state == "cancelled"
    assert gate.left == 1


def test_a_waiting_job_that_is_cancelled_ends_at_once(worker, gate):
    running = Encoding(worker.address, request(worker))
    assert gate.entered.wait(20)
    waiting = Encoding(worker.address, request(worker))
    until(lambda: health(worker.address).waiting == 1)
    call(worker.address, "POST", f"/jobs/{waiting.job}/cancel")
    assert waiting.outcome()[0] == 410
    assert gate.left == 0
    gate.open.set()
    assert running.outcome()[0] == 200


def test_a_client_that_leaves_cancels_its_running_job(worker, gate):
    job = new_id()
    sock = begin(worker.address, request(worker), job)
    assert gate.entered.wait(20)
    sock.close()
    until(lambda: gate.left == 1)
    assert job_state(worker.address, job).state == "cancelled"


def test_a_client_that_leaves_takes_its_waiting_job_along(worker, gate):
    running = Encoding(worker.address, request(worker))
    assert gate.entered.wait(20)
    job = new_id()
    sock = begin(worker.address, request(worker), job)
    until(lambda: health(worker.address).waiting == 1)
    sock.close()
    until(lambda: health(worker.address).waiting == 0)
    assert job_state(worker.address, job).state == "cancelled"
    gate.open.set()
    assert running.outcome()[0] == 200


def test_unload_waits_for_the_running_job(worker, gate):
    running = Encoding(worker.address, request(worker))
    assert gate.entered.wait(20)
    asked = []
    threads = [threading.Thread(target=lambda: asked.append(call(worker.address, "POST", "/unload")[0])) for _ in "ab"]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert asked == []
    gate.open.set()
    assert running.outcome()[0] == 200
    for thread in threads:
        thread.join(20)
    assert asked == [200, 200]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            500,
            "expected enough memory, got none",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            500,
            "expected enough memory, got none",
        ),
        (RuntimeError("something broke"), 500, "RuntimeError: something broke"),
        (RuntimeError("encoder: expected weights, got none."), 500, "encoder: expected weights, got none."),
        (ValueError("encoder: expected this, got that. Do so."), 400, "encoder: expected this, got that. Do so."),
    ],
)
def test_a_job_that_fails_is_told_why_and_the_next_one_runs(worker, monkeypatch, error, status, said):
    def fail(given, step):
        raise error

    monkeypatch.setattr(worker.engine, "encode", fail)
    job = new_id()
    found, text = encode(worker.address, request(worker), job)
    assert (found, text.startswith((said, f"worker: {said}"))) == (status, True), text
    assert job_state(worker.address, job).state == "failed"


def test_loading_that_is_cancelled_or_fails_is_begun_again(worker, monkeypatch):
    call(worker.address, "POST", "/unload")
    fill, calls = worker.engine.encoder.source.fill, []

    def failing(slots, names):
        calls.append(names)
        if len(calls) == 3:
            raise RuntimeError("the disk is gone")
        return fill(slots, names)

    monkeypatch.setattr(worker.engine.encoder.source, "fill", failing)
    status, text = encode(worker.address, request(worker))
    assert (status, "the disk is gone" in text) == (500, True)
    assert not worker.engine.loaded
    assert len(worker.engine.encoder.slots.missing()) == len(worker.engine.encoder.slots.names)
    assert encode(worker.address, request(worker))[0] == 200


def test_a_program_on_a_web_page_gets_nothing(worker):
    status, body = call(worker.address, "POST", "/unload", Origin="https://example.org")
    assert (status, "got a page in a browser" in message(body)) == (403, True)
    status, body = call(worker.address, "GET", "/health", Host="example.org:8189")
    assert (status, "got one to 'example.org:8189'" in message(body)) == (403, True)
    assert call(worker.address, "GET", "/health", Host="localhost:8189")[0] == 200
    assert call(worker.address, "GET", "/health", Host="[::1]:8189")[0] == 200


def test_connections_that_say_nothing_are_closed(worker):
    silent = [socket.create_connection(worker.address) for _ in range(LIMITS.connections + 5)]
    until(lambda: len(worker.service._server._runner.server.connections) == 0)
    for sock in silent:
        sock.settimeout(5)
        assert received(sock) == b""
    assert not worker.service._server._silent


def test_every_route_wants_the_token_where_there_is_one(tiny_checkpoint):
    settings = Settings(tiny_checkpoint, tap_layer=TAP_LAYER, device="cpu", limits=LIMITS, token=TOKEN)
    with LocalWorker(settings) as worker:
        job = "/jobs/abcdef01"
        routes = [("GET", "/health"), ("POST", "/encode"), ("GET", job), ("POST", f"{job}/cancel"), ("POST", "/unload")]
        for method, path in [*routes, ("GET", "/nothing")]:
            for headers in (
                {},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": TOKEN},
                {"Authorization": "é"},
            ):
                status, body = call(worker.address, method, path, **headers)
                assert (status, "expected its token" in message(body)) == (401, True), (method, path, headers)
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        told = health(worker.address, **allowed, Host="any.name")
        assert encode(worker.address, text_request(told), **allowed)[0] == 200
        assert call(worker.address, "POST", "/encode", b"1" * 100_000, **{JOB_HEADER: new_id()})[0] == 401


def test_jobs_of_a_worker_that_ends_are_told_so(tiny_checkpoint):
    settings = Settings(tiny_checkpoint, tap_layer=TAP_LAYER, device="cpu", limits=LIMITS)
    with LocalWorker(settings) as worker:
        gate = Gate(worker.engine)
        jobs = [Encoding(worker.address, request(worker))]
        assert gate.entered.wait(20)
        jobs.append(Encoding(worker.address, request(worker)))
        until(lambda: health(worker.address).waiting == 1)
        worker.end("rank 3 of 4 died")
        for job in jobs:
            status, text = job.outcome()
            assert (status, "got its end: rank 3 of 4 died" in text) == (503, True), text
        gate.open.set()


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this PyTorch has no such error")
def test_a_device_that_takes_no_more_work_ends_the_worker(tiny_checkpoint, monkeypatch):
    def fail(given, step):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    settings = Settings(tiny_checkpoint, tap_layer=TAP_LAYER, device="cpu", limits=LIMITS)
    with LocalWorker(settings) as worker:
        monkeypatch.setattr(worker.engine, "encode", fail)
        status, text = encode(worker.address, request(worker))
        assert (status, "got its end: failed: AcceleratorError: CUDA error" in text) == (503, True), text
        worker._thread.join(20)
