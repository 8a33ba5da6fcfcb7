"""A worker that does as told: the routes of the protocol over aiohttp, in a thread of this process.

Contract: `fake_worker(answer)` starts one and stops it after the test. `answer(request) -> EncodeReply` computes; while
`.hold` is set a job runs on until it is cancelled; `.instead[path]` answers there in place of the route. `.asked` lists
(method, path, headers) of every request, `.left` the jobs whose client went away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from aiohttp import web

CONFIG = {"text_config": {"hidden_size": 8}}


def reply_of(request, width: int = 8):
    """Finite states that tell the token; every token is text."""
    from h3te.encoder.parallel.protocol import EncodeReply

    states = request.input_ids[:, None].expand(-1, width).to(getattr(torch, request.dtype))
    return EncodeReply(states, torch.ones_like(request.input_ids), seconds=0.25)


class FakeWorker:
    def __init__(self, answer: Callable = reply_of, **changes):
        from h3te.encoder.parallel.protocol import Health

        told = {"weights": "a" * 64, "format": "bf16", "label": "h3.safetensors: bf16", "dtype": "bfloat16",
                "tap_layer": 50, "config": CONFIG, "tp_size": 1, "device": "cpu", "loaded": False,
                "weight_bytes": 1, "vision": True, "waiting": 0, "queue_limit": 8, "body_limit": 10**9,
                "token_limit": 100_000, "pack": "0.1.0"}  # fmt: skip
        self.health = Health(**{**told, **changes})
        self.answer, self.token = answer, None
        self.hold, self.states, self.instead = threading.Event(), {}, {}
        self.asked, self.requests, self.left = [], [], []

    # routes

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(body=self.health.to_bytes())

    async def _encode(self, request: web.Request) -> web.Response:
        from h3te.encoder.parallel.protocol import JOB_HEADER, EncodeRequest, JobState

        job = request.headers[JOB_HEADER]
        self.states[job] = JobState("waiting", position=2)
        self.requests.append(EncodeRequest.from_bytes(await request.read()))
        try:
            while self.hold.is_set():
                self.states[job] = JobState("running", done=3, total=50, what="layer 3 of 50")
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            self.left.append(job)
            raise
        answer = await asyncio.get_running_loop().run_in_executor(None, self.answer, self.requests[-1])
        return web.Response(body=answer.to_bytes())

    async def _job(self, request: web.Request) -> web.Response:
        state = self.states.get(request.match_info["job"])
        return self._error(404, "no such job") if state is None else web.Response(body=state.to_bytes())

    async def _unload(self, request: web.Request) -> web.Response:
        return web.Response(body=replace(self.health, loaded=False).to_bytes())

    @staticmethod
    def _error(status: int, text: str) -> web.Response:
        from h3te.encoder.parallel.protocol import error_body

        return web.Response(status=status, body=error_body(text))

    @web.middleware
    async def _first(self, request: web.Request, handler: Callable) -> web.StreamResponse:
        self.asked.append((request.method, request.path, dict(request.headers)))
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._error(401, "worker: expected its token, got none or another")
        instead = self.instead.get(request.path)
        return await handler(request) if instead is None else await instead(request)

    # its life

    def start(self) -> FakeWorker:
        self._loop, begun = asyncio.new_event_loop(), threading.Event()

        async def serve() -> None:
            app = web.Application(middlewares=[self._first], client_max_size=10**9)
            app.add_routes([
                web.get("/health", self._health), web.post("/encode", self._encode),
                web.get("/jobs/{job}", self._job), web.post("/jobs/{job}/cancel", self._job),
                web.post("/unload", self._unload),
            ])  # fmt: skip
            self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
            begun.set()

        self._loop.create_task(serve())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        assert begun.wait(10)
        self.at = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    def stop(self) -> None:
        """Connections are cut; a second call does nothing."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def paths(self) -> list[str]:
        """Of everything that was asked but for the reports."""
        return [path for method, path, _ in self.asked if not (method == "GET" and path.startswith("/jobs/"))]


@pytest.fixture
def fake_worker():
    started = []

    def start(answer: Callable = reply_of, **changes) -> FakeWorker:
        started.append(FakeWorker(answer, **changes).start())
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
