"""Asking a worker: what is sent, what is believed, Stop, workers that are slow, gone, or none at all."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref

import pytest
import torch
from aiohttp import web
from h3te.encoder.parallel.protocol import EncodeReply, EncodeRequest, Health, JobState
from h3te.encoder.parallel.remote import RemoteWorker, WorkerAddress, WorkerUnreachable, exchange
from h3te_tests.fake_worker import fake_worker, reply_of  # noqa: F401 (fixture)


def remote(worker, token: str | None = None) -> RemoteWorker:
    return RemoteWorker(WorkerAddress.parse(worker.at), token)


def request(tokens: int = 3, **fields) -> EncodeRequest:
    return EncodeRequest(torch.arange(1, tokens + 1), "a" * 64, "bfloat16", 50, **fields)


def encode(worker, progress=None, **fields) -> EncodeReply:
    return remote(worker).encode(request(**fields), 8, progress)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "h3te remote"]


def settled(condition, seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


class Stop(BaseException):
    """As ComfyUI's interrupt of newer releases: no Exception."""


def test_request_arrives_whole_and_the_answer_comes_back_to_the_bit(fake_worker):  # noqa: F811
    worker = fake_worker()
    pixels, grid = torch.randn(8, 1536).bfloat16(), torch.tensor([[1, 2, 4]])
    reply = encode(worker, pixel_values=pixels, image_grid_thw=grid, vision_packing="per_reference", reuse=True)
    (got,) = worker.requests
    assert torch.equal(got.pixel_values, pixels) and torch.equal(got.image_grid_thw, grid)
    assert (got.input_ids.tolist(), got.checkpoint, got.tap_layer) == ([1, 2, 3], "a" * 64, 50)
    assert (got.vision_packing, got.reuse, got.pixel_values_videos) == ("per_reference", True, None)
    assert torch.equal(reply.hidden, reply_of(got).hidden)
    assert (reply.token_tags.tolist(), reply.seconds) == ([1, 1, 1], 0.25)
    headers = next(headers for _, path, headers in worker.asked if path == "/encode")
    assert int(headers["Content-Length"]) == len(
        got.to_bytes()
    )  # announced, so that a worker can refuse before it reads
    assert "Transfer-Encoding" not in headers


def test_health_is_what_the_worker_says(fake_worker):  # noqa: F811
    worker = fake_worker(tp_size=2, device="cuda:0")
    assert remote(worker).health() == worker.health
    remote(worker).unload()
    assert worker.paths() == ["/health", "/unload"]


def test_question_that_is_not_answered_is_left_at_once_when_stop_is_pressed():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        known = RemoteWorker(WorkerAddress.parse(f"127.0.0.1:{silent.getsockname()[1]}"))
        began = time.monotonic()
        with pytest.raises(Stop):
            known.health(while_waiting=stop)
        assert time.monotonic() - began < 5


def stop() -> None:
    raise Stop


def test_token_is_sent_with_every_question_and_never_shown(fake_worker):  # noqa: F811
    worker = fake_worker()
    worker.token = "the-secret"
    known = remote(worker, "the-secret")
    known.health(), known.encode(request(), 8), known.unload()
    assert all(headers["Authorization"] == "Bearer the-secret" for *_, headers in worker.asked)
    assert "secret" not in repr(known)
    for wrong in (remote(worker), remote(worker, "another")):
        with pytest.raises(
            RuntimeError, match=r"expected its token, got none or another \(HTTP 401\)\. Put the"
        ) as refused:
            wrong.encode(request(), 8)
        assert "another." not in str(refused.value)


def test_progress_is_told_in_the_callers_thread_while_it_runs(fake_worker):  # noqa: F811
    worker, seen = fake_worker(), []
    worker.hold.set()

    def progress(*step) -> None:
        seen.append((*step, threading.current_thread()))
        if step[1]:
            worker.hold.clear()

    encode(worker, progress)
    assert seen[-1] == (3, 50, "layer 3 of 50", threading.current_thread())
    assert all(step[1] in (0, 50) for step in seen)


@pytest.mark.parametrize(
    ("state", "step"),
    [(None, (0, 0, "sent to the worker")), (JobState("waiting", position=2), (0, 0, "waiting, 2 before you"))],
)
def test_what_is_not_counted_yet_has_no_total(state, step):
    from h3te.encoder.parallel.remote.client import _step

    assert _step(state) == step


@pytest.mark.parametrize("error", [Stop, ValueError])
def test_stop_cancels_the_job_and_leaves_at_once(fake_worker, error):  # noqa: F811
    worker = fake_worker()
    worker.hold.set()

    def progress(done, total, what) -> None:
        if total:
            raise error("stopped")

    began = time.monotonic()
    with pytest.raises(error, match="stopped"):
        encode(worker, progress)
    assert time.monotonic() - began < 2
    assert settled(lambda: worker.left and any(path.endswith("/cancel") for path in worker.paths()))
    assert set(worker.left) == set(worker.states)
    assert settled(lambda: not threads())
    worker.hold.clear()
    assert len(encode(worker).hidden) == 3


def test_stop_does_not_wait_for_a_worker_that_hangs(fake_worker):  # noqa: F811
    worker = fake_worker()

    async def never(request):
        await asyncio.sleep(60)

    worker.instead["/encode"] = never

    def progress(*step) -> None:
        raise Stop

    began = time.monotonic()
    with pytest.raises(Stop):
        encode(worker, progress)
    assert time.monotonic() - began < 2


def test_callers_with_a_running_loop_may_ask(fake_worker):  # noqa: F811
    worker = fake_worker()

    async def inside() -> Health:
        return remote(worker).health()

    assert asyncio.run(inside()) == worker.health


def test_nothing_is_left_after_a_request_or_an_error(fake_worker):  # noqa: F811
    worker, sent = fake_worker(), request()
    gone = weakref.ref(sent)
    remote(worker).encode(sent, 8)
    worker.instead["/encode"] = lambda request: worker_error(503, "queue full")
    with pytest.raises(RuntimeError, match="queue full"):
        remote(worker).encode(sent, 8)
    del sent
    assert settled(lambda: not threads())
    gc.collect()
    assert gone() is None


async def worker_error(status: int, text: str) -> web.Response:
    from h3te.encoder.parallel.protocol import error_body

    return web.Response(status=status, body=error_body(text))


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [
        (400, ValueError, "Change the request as it says"),
        (403, RuntimeError, "Ask it by an address of its own machine, or start it with a token"),
        (404, RuntimeError, "Check that this is the address of a worker"),
        (409, RuntimeError, "Load the text encoder again, or start the worker with that checkpoint"),
        (410, RuntimeError, "Queue the prompt again"),
        (413, ValueError, "Give fewer or smaller references"),
        (500, RuntimeError, "The worker's own log says more"),
        (503, RuntimeError, "Try again later"),
        (418, RuntimeError, "Check that this is the address of a worker"),
    ],
)
def test_refusals_say_what_the_worker_said_and_what_to_do(fake_worker, status, kind, advice):  # noqa: F811
    worker = fake_worker()
    worker.instead["/encode"] = lambda request: worker_error(status, "worker: rank 1 \n of 2:\x1b[31m no")
    with pytest.raises(kind, match=rf"{worker.at}: rank 1 of 2: \[31m no \(HTTP {status}\)\. {advice}"):
        encode(worker)


def test_redirect_is_not_followed(fake_worker):  # noqa: F811
    worker, other = fake_worker(), fake_worker()

    async def away(request):
        raise web.HTTPTemporaryRedirect(f"http://{other.at}{request.path}")

    worker.instead |= {"/health": away, "/encode": away}
    for ask in (lambda: remote(worker, "secret").health(), lambda: encode(worker)):
        with pytest.raises(RuntimeError, match=r"got a redirect \(307\), which is never followed"):
            ask()
    assert not other.asked


def test_proxy_of_the_environment_is_not_used(fake_worker, monkeypatch):  # noqa: F811
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert remote(fake_worker()).health().tp_size == 1


@pytest.mark.parametrize("announced", [True, False])
def test_answer_that_is_too_long_is_not_read(fake_worker, announced):  # noqa: F811
    worker, sent = fake_worker(), []

    async def long(request):
        response = web.StreamResponse()
        if announced:
            response.content_length = 10**12
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 16))
            sent.append(1 << 16)

    worker.instead |= {"/health": long, "/encode": long}
    for ask in (remote(worker).health, lambda: encode(worker)):
        with pytest.raises(RuntimeError, match=r"expected an answer of at most [0-9,]+ bytes, got"):
            ask()
    assert sum(sent) < 100 << 20


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\x1f\x8b\x08" + bytes(99), b'{"protocol": 2}', b"\xff" * 99])
def test_answer_of_something_else_is_the_workers_fault(fake_worker, body):  # noqa: F811
    worker = fake_worker()

    async def other(request):
        return web.Response(body=body)

    worker.instead |= {"/health": other, "/encode": other}
    for ask in (remote(worker).health, lambda: encode(worker)):
        with pytest.raises(RuntimeError, match=f"Remote text encoder {worker.at}: (health|encode reply): expected"):
            ask()


def test_worker_that_is_not_there_is_one_clear_error(fake_worker):  # noqa: F811
    worker = fake_worker()
    worker.stop()
    for ask in (remote(worker).health, lambda: encode(worker), remote(worker).unload):
        with pytest.raises(
            WorkerUnreachable, match=r"answers, got none \(nothing listens there\)\. Start it there with"
        ) as raised:
            ask()
        assert f"{raised.type.__module__}.{raised.type.__qualname__}" == "h3te.WorkerUnreachable"


def test_worker_that_dies_while_it_computes_is_one_clear_error(fake_worker):  # noqa: F811
    worker = fake_worker()
    worker.hold.set()

    killing = threading.Thread(target=worker.stop)

    def progress(done, total, what) -> None:
        if total and not killing.ident:
            killing.start()

    with pytest.raises(WorkerUnreachable, match="expected a worker that answers, got none"):
        encode(worker, progress)
    killing.join(10)


def test_job_that_is_not_heard_of_any_more_is_given_up(fake_worker, monkeypatch):  # noqa: F811
    """A machine that was switched off leaves the connection open."""
    monkeypatch.setattr(exchange, "LOST_SECONDS", 0.5)
    worker = fake_worker()
    worker.hold.set()

    def progress(done, total, what) -> None:
        for job in worker.states if total else ():
            worker.instead[f"/jobs/{job}"] = lambda request: worker_error(404, "no such job")

    with pytest.raises(WorkerUnreachable, match="expected a worker that answers, got none"):
        encode(worker, progress)
    assert settled(lambda: worker.left)


def test_computing_has_no_time_limit_while_the_job_is_alive(fake_worker, monkeypatch):  # noqa: F811
    monkeypatch.setattr(exchange, "LOST_SECONDS", 0.3)
    monkeypatch.setattr(exchange, "CONNECT_SECONDS", 0.3)
    worker, began = fake_worker(), time.monotonic()
    worker.hold.set()

    def progress(done, total, what) -> None:
        if time.monotonic() - began > 1:
            worker.hold.clear()

    assert len(encode(worker, progress).hidden) == 3


def test_answer_that_stops_in_the_middle_is_given_up(fake_worker, monkeypatch):  # noqa: F811
    monkeypatch.setattr("h3te.encoder.parallel.remote.answers.STALLED_SECONDS", 0.3)
    worker = fake_worker()

    async def half(request):
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request)
        await response.write(bytes(500))
        await asyncio.sleep(30)

    worker.instead["/encode"] = half
    with pytest.raises(WorkerUnreachable, match="no answer in time"):
        encode(worker)
