"""The HTTP side of a worker: who may ask, and what each route answers.

Contract: `Server(board, health, check, limits, token)` makes the routes of protocol.py; `start(sock)` serves until
`stop()`. Every call needs the token, where there is one, before anything of it is read; pages in a browser get nothing,
so that a web site cannot reach a worker on its visitor's machine. A client that closes its connection cancels its job.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ..protocol import JOB_HEADER, JOB_ID, EncodeRequest, Health, JobState, OtherProtocol, error_body
from .board import CANCELLED, Board, Job, Refused
from .settings import Limits, is_loopback
from .transfer import Answers, read_body

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CLOSING_SECONDS = 3.0


class Server:
    def __init__(
        self,
        board: Board,
        health: Callable[[], Health],
        check: Callable[[EncodeRequest], None],
        limits: Limits,
        token: str | None,
    ):
        """check: raises ValueError for ids and pictures that do not fit; called in a thread, one at a time: it holds a
        body also when its client is gone and the board counts it no longer."""
        self._board, self._health, self._check, self._limits = board, health, check, limits
        self._token = None if token is None else f"Bearer {token}".encode()
        self._answers = Answers(limits)
        self._checking = asyncio.Lock()
        app = web.Application(middlewares=[self._answer_errors, self._admit])
        app.add_routes(
            [
                web.get("/health", self._get_health),
                web.post("/encode", self._encode),
                web.get("/jobs/{id}", self._get_job),
                web.post("/jobs/{id}/cancel", self._cancel),
                web.post("/unload", self._unload),
            ]
        )
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, keepalive_timeout=30, shutdown_timeout=CLOSING_SECONDS,
            auto_decompress=False,  # it would begin before the token is looked at
        )  # fmt: skip
        self._listening: asyncio.AbstractServer | None = None
        self._silent: set[asyncio.Protocol] = set()  # connections that have not sent a whole request head yet

    async def start(self, sock: socket.socket) -> None:
        await self._runner.setup()
        self._listening = await asyncio.get_running_loop().create_server(self._connection, sock=sock)

    async def stop(self) -> None:
        """Answers on their way have CLOSING_SECONDS."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """One more connection; who says nothing for too long, or comes when too many are there, is sent away."""
        connection, loop = self._runner.server(), asyncio.get_running_loop()
        full = len(self._runner.server.connections) >= self._limits.connections
        self._silent.add(connection)
        loop.call_later(0 if full else self._limits.stall_seconds, self._end_if_silent, connection)
        return connection

    def _end_if_silent(self, connection: asyncio.Protocol) -> None:
        if connection in self._silent:
            self._silent.discard(connection)
            connection.force_close()

    # around every route

    @web.middleware
    async def _answer_errors(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        self._silent.discard(http.protocol)
        try:
            return await handler(http)
        except Refused as refused:
            return _error(refused.status, refused.text)
        except web.HTTPException as error:
            return _error(
                error.status, f"worker: expected a route of this protocol, got {http.method} {http.path:.100}."
            )
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            logger.exception("worker: %s %s", http.method, http.path)
            return _error(500, f"worker: expected to answer, got {type(error).__name__}: {error}. See its log.")

    @web.middleware
    async def _admit(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token is not None:
            given = http.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._token):
                raise Refused(
                    401, "worker: expected its token, got none or another. Give the client the worker's token."
                )
        elif not is_loopback(_host_name(http.headers.get("Host", ""))):
            raise Refused(
                403,
                f"worker: expected a call to this machine, got one to {http.headers.get('Host')!r:.100}. Set a token.",
            )
        if "Origin" in http.headers:
            raise Refused(403, "worker: expected a program, got a page in a browser. Use the node pack.")
        return await handler(http)

    # routes

    async def _get_health(self, http: web.Request) -> web.Response:
        return _json(self._health())

    async def _get_job(self, http: web.Request) -> web.Response:
        return _json(_known(self._board.state(http.match_info["id"])))

    async def _cancel(self, http: web.Request) -> web.Response:
        return _json(_known(self._board.cancel(http.match_info["id"])))

    async def _unload(self, http: web.Request) -> web.Response:
        await asyncio.shield(self._board.unload())
        return _json(self._health())

    async def _encode(self, http: web.Request) -> web.StreamResponse:
        size = self._announced(http)
        job, gone = self._board.admit(_job_id(http), size), False
        try:
            await self._receive(http, job, size)
            reply = await job.result
            return await self._answers.send(http, reply.pieces())
        except asyncio.CancelledError:
            gone = True
            raise
        finally:
            self._board.leave(job, gone)

    def _announced(self, http: web.Request) -> int:
        size, packed = http.content_length, http.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise Refused(400, f"worker: expected a body as it is, got Content-Encoding {packed!r:.40}. Leave it out.")
        if size is None:
            raise Refused(400, "worker: expected a Content-Length, got a body of unknown size. Send its length.")
        if size > self._limits.body_bytes:
            raise Refused(
                413, f"worker: expected at most {self._limits.body_bytes:,} bytes, got {size:,}. Send fewer or smaller "
                "pictures, or start the worker with a larger --body-limit."
            )  # fmt: skip
        return size

    async def _receive(self, http: web.Request, job: Job, size: int) -> None:
        body = await read_body(http, size, self._limits)
        try:
            request = EncodeRequest.from_bytes(body)
            self._compare(request)
            await self._checked(request)
        except OtherProtocol as error:
            raise Refused(409, str(error)) from error
        except ValueError as error:
            raise Refused(400, str(error)) from error
        if http.transport is None:  # the client left; its handler is cancelled, or soon will be
            raise Refused(410, CANCELLED)
        self._board.enqueue(job, body, request)

    async def _checked(self, request: EncodeRequest) -> None:
        await self._checking.acquire()
        check = asyncio.get_running_loop().run_in_executor(None, self._check, request)
        check.add_done_callback(self._check_ended)
        await asyncio.shield(check)  # the thread goes on when the client leaves

    def _check_ended(self, check: asyncio.Future[Any]) -> None:
        self._checking.release()
        if not check.cancelled():
            check.exception()  # seen: its client may be gone

    def _compare(self, request: EncodeRequest) -> None:
        """Raises Refused for another encoder than the client expects, and for too many tokens."""
        health, tokens = self._health(), len(request.input_ids)
        own = {"checkpoint": health.weights, "dtype": health.dtype, "tap_layer": health.tap_layer}
        own |= {"numerics": health.numerics, **({"tp_size": health.tp_size} if request.tp_size else {})}
        for name, mine in own.items():
            if getattr(request, name) != mine:
                raise Refused(
                    409, f"worker: expected {name} {mine} ({health.label}), got {getattr(request, name)}. Start the "
                    "worker with the checkpoint, options and release of the node pack that the client expects."
                )  # fmt: skip
        if tokens > self._limits.tokens:
            raise Refused(
                413, f"worker: expected at most {self._limits.tokens:,} tokens, got {tokens:,}. Send less, or start "
                "the worker with a larger --tokens-limit."
            )  # fmt: skip


def _job_id(http: web.Request) -> str:
    found = http.headers.get(JOB_HEADER, "")
    if not JOB_ID.fullmatch(found):
        raise Refused(400, f"worker: expected {JOB_HEADER} as 8 to 64 hex digits, got {found!r:.80}. Make one.")
    return found


def _known(state: JobState | None) -> JobState:
    if state is None:
        raise Refused(404, "worker: expected the id of a job, got an unknown one. It may have ended long ago.")
    return state


def _host_name(host: str) -> str:
    """Without the port: "127.0.0.1:8189", "[::1]:8189", "localhost"."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _json(told: Health | JobState) -> web.Response:
    return web.Response(body=told.to_bytes(), content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=error_body(text), content_type="application/json")
