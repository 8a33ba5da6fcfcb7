"""A worker from start to end: the same for one process and for each of several.

Contract: `serve(settings, joined, engine, sock)` is rank 0 and serves until a signal, the loss of a rank, or an error
of its own; then waiting and running jobs get a 503 that says why. `follow(joined, engine)` is any other rank. Both
return an exit status; the computing thread may still wait in a collective then, so that the process has to be left by
`os._exit`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable

from ..protocol import Health
from .board import Board
from .control import RankLost
from .engine import Engine
from .job_loop import JobLoop, WorkerEnds
from .pulse import FAILED, LOST_CONTACT
from .ranks import Joined
from .server import Server
from .settings import Settings

logger = logging.getLogger(__name__)

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
TOLD_TO_END = "it was told to end"


class Service:
    """Rank 0 within an event loop."""

    def __init__(self, settings: Settings, joined: Joined, engine: Engine):
        self._settings, self._joined, self._engine = settings, joined, engine
        self._identity = engine.identity()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        limits = settings.limits
        self.board = Board(limits, self._loop)
        self._server = Server(self.board, self.health, engine.check, limits, settings.token)

    def health(self):
        return self._engine.health(self._identity, self._settings.limits, self.board.waiting)

    async def start(self, sock: socket.socket) -> None:
        loop = JobLoop(self._engine, self._joined.control, self.board)
        watched = (loop.run, self.end, self._ended.done)
        threading.Thread(target=_watched, args=watched, name="h3te encode", daemon=True).start()
        if self._joined.pulse is not None:
            self._joined.pulse.start(self.end)
        await self._server.start(sock)

    def end(self, why: str) -> None:
        """From any thread; the first reason counts."""
        self._loop.call_soon_threadsafe(self._settle, why)

    def _settle(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    async def ended(self) -> str:
        """Why it ends, once it does: the rank that is lost rather than what came of it."""
        why = await self._ended
        if self._joined.pulse is not None and why in (TOLD_TO_END, LOST_CONTACT):
            why = await self._loop.run_in_executor(None, self._joined.pulse.lost) or why
        return why

    async def stop(self, why: str) -> None:
        self.board.close(f"worker: expected to go on, got its end: {why}. Start it again.")
        await self._server.stop()


def serve(settings: Settings, joined: Joined, engine: Engine, sock: socket.socket) -> int:
    return asyncio.run(_serve(settings, joined, engine, sock))


async def _serve(settings: Settings, joined: Joined, engine: Engine, sock: socket.socket) -> int:
    service = Service(settings, joined, engine)
    _on_signals(lambda: service.end(TOLD_TO_END))
    await service.start(sock)
    host, port = sock.getsockname()[:2]
    for line in ready_lines(service.health(), host, port, settings.token is not None):
        logger.info("worker: %s", line)
    why = await service.ended()
    logger.log(logging.INFO if why == TOLD_TO_END else logging.ERROR, "worker: ends, %s", why)
    if joined.pulse is not None:
        joined.pulse.note(why)
    await service.stop(why)
    return int(why != TOLD_TO_END)


def ready_lines(health: Health, host: str, port: int, has_token: bool) -> list[str]:
    """What the person who started it needs to know."""
    ranks = "1 rank" if health.tp_size == 1 else f"{health.tp_size} ranks"
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    typed = f"this machine's name or address with :{port}" if host in ("0.0.0.0", "::") else address
    how = f"in ComfyUI, type {typed} at remote of MiniMax H3 Encoder Options (H3TE)"
    if has_token:
        how += ", and list it there with the token (docs/remote.md)"
    return [
        f"serves {health.label}",
        f"at http://{address}, {ranks}, {health.device}, {health.dtype}, ready",
        f"{how}; Ctrl+C ends the worker",
    ]


def follow(joined: Joined, engine: Engine) -> int:
    ended, reasons = threading.Event(), []

    def end(why: str) -> None:
        reasons.append(why)
        ended.set()

    _on_signals(lambda: end(TOLD_TO_END))
    watched = (JobLoop(engine, joined.control).run, end, ended.is_set)
    threading.Thread(target=_watched, args=watched, daemon=True).start()
    joined.pulse.start(end)
    while not ended.wait(0.5):  # in pieces, so that a signal is seen on every system
        pass
    joined.pulse.note(reasons[0])
    logger.info("worker: rank %d ends, %s", joined.place.rank, reasons[0])
    return 1  # also when it was told to end: torchrun then ends the others


def _watched(run: Callable[[], None], end: Callable[[str], None], is_ending: Callable[[], bool]) -> None:
    """The computing thread: whatever ends it ends the worker. Ranks that end lose each other, which is no news then."""
    try:
        run()
    except (RankLost, WorkerEnds) as error:
        if not is_ending():
            logger.error("worker: %s", error)
        end(LOST_CONTACT if isinstance(error, RankLost) else f"{FAILED}{error}")
    except Exception as error:
        logger.exception("worker: cannot go on")
        end(f"{FAILED}{type(error).__name__}: {error}")


def _on_signals(act: Callable[[], None]) -> None:
    for each in SIGNALS:
        signal.signal(each, lambda number, frame: act())
