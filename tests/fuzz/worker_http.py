"""A worker's server and a worker's client, each with a stranger at the other end of a pair of sockets.

Contract: `start()` makes the event loop and the server (routes of server.py over a board without an encoder);
`answered_server(raw)` sends it these bytes; `answered_client(raw)` lets the client ask a worker that answers these
bytes. Both raise for what is none of our errors. Nothing leaves the process.
"""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

TOKEN = "token-of-ours-4711"  # nothing that an answer holds by chance
SECONDS = 0.5  # until an exchange is given up
STATUSES = {200, 400, 401, 403, 404, 405, 408, 409, 410, 413, 503}  # of ours, and of aiohttp for what is no HTTP
_state = SimpleNamespace()


def HEALTH(**changes):
    from h3te.encoder.parallel.protocol import Health

    told = {"weights": "a" * 64, "format": "bf16", "label": "h3.safetensors: bf16", "dtype": "bfloat16",
            "tap_layer": 50, "config": {"text_config": {"hidden_size": 8}}, "tp_size": 1, "device": "cpu",
            "loaded": False, "weight_bytes": 1, "vision": True, "waiting": 0, "queue_limit": 8, "body_limit": 10**6,
            "token_limit": 100_000, "pack": "0.1.0"}  # fmt: skip
    return Health(**{**told, **changes})


def server_seeds(body: bytes) -> list[bytes]:
    head = b"Host: 127.0.0.1\r\nConnection: close\r\n"
    post = b"X-H3TE-Job: abcdef0123\r\nContent-Length: %d\r\n" % len(body)
    return [
        b"GET /health HTTP/1.1\r\n" + head + b"\r\n", b"GET /jobs/abcdef01 HTTP/1.1\r\n" + head + b"\r\n",
        b"POST /jobs/abcdef01/cancel HTTP/1.1\r\n" + head + b"\r\n", b"GET /nothing HTTP/1.1\r\n" + head + b"\r\n",
        b"POST /encode HTTP/1.1\r\n" + head + post + b"\r\n" + body,
        b"POST /encode HTTP/1.1\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ]  # fmt: skip


def client_seeds() -> list[bytes]:
    health = HEALTH().to_bytes()
    return [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(health) + health,
        b'HTTP/1.1 409 Conflict\r\nContent-Length: 14\r\n\r\n{"error": "x"}',
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]


class _NoEncoder:
    """A board whose jobs end at once: the server's own part is looked at."""

    def __init__(self):
        from h3te.encoder.parallel.worker.board import Board
        from h3te.encoder.parallel.worker.settings import Limits

        self.limits = Limits(body_bytes=1 << 20, stall_seconds=0.1, grace_seconds=0.2)
        self.board = Board(self.limits, asyncio.get_running_loop())
        self.board.enqueue = self.answer
        self.board.unload = self.unloaded

    def answer(self, job, body, request) -> None:
        from h3te.encoder.parallel.protocol import EncodeReply

        hidden = request.input_ids[:, None].bfloat16()
        job.result.set_result(EncodeReply(hidden, request.input_ids))

    async def unloaded(self) -> None:
        return None


def start() -> None:
    _state.loop = asyncio.new_event_loop()
    _state.loop.run_until_complete(_start())


async def _start() -> None:
    from h3te.encoder.parallel.worker.server import Server

    stand_in = _NoEncoder()
    _state.server = Server(stand_in.board, HEALTH, lambda request: None, stand_in.limits, None)
    await _state.server._runner.setup()


def answered_server(raw: bytes) -> None:
    for line in _state.loop.run_until_complete(_sent(raw)).split(b"\n"):
        if line.startswith(b"HTTP/1.") and int(line[9:12]) not in STATUSES:
            raise AssertionError(f"expected a status of ours, got {line!r}")


async def _sent(raw: bytes) -> bytes:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(_state.server._connection, ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        writer.write(raw)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(1 << 20), SECONDS)
    except (asyncio.TimeoutError, ConnectionError):
        return b""
    finally:
        writer.close()
        transport.abort()
        await asyncio.sleep(0)


def answered_client(raw: bytes) -> None:
    try:
        _state.loop.run_until_complete(_asked(raw))
    except (ValueError, RuntimeError) as error:  # it tells what the worker says, on one line
        if not str(error).isprintable() or len(str(error)) > 4500 or TOKEN in str(error):
            raise AssertionError(f"expected one line, got {error!r:.2000}") from error


async def _asked(raw: bytes) -> None:
    from h3te.encoder.parallel.protocol import Health
    from h3te.encoder.parallel.remote import WorkerAddress
    from h3te.encoder.parallel.remote.exchange import Exchange

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await asyncio.sleep(0)
        writer.close()

    listening = await asyncio.start_server(stranger, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        exchange = Exchange(WorkerAddress.parse(f"127.0.0.1:{port}"), TOKEN)
        body = await exchange.ask("GET", "/health", SECONDS)
        Health.from_bytes(body)
    finally:
        listening.close()
