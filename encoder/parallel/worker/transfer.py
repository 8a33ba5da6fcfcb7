"""Bodies in and answers out, with time limits, so that a slow client holds nothing for long.

Contract: `read_body` fills one buffer of the announced size; `Answers.send` writes an answer without copying it whole.
A transfer that stalls, or takes longer than its size allows, ends: a request with Refused 408, an answer with its
connection. At most `answers` of them are on their way; one more ends the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeVar

import torch
from aiohttp import web

from ..protocol import MEDIA_TYPE
from .board import Refused
from .settings import Limits

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 18  # of an answer at a time; the connection's own buffer is smaller
T = TypeVar("T")


class _Clock:
    """The time that a transfer has: each step of it, and what has moved so far at the least rate."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._now = asyncio.get_running_loop().time
        self._start, self.moved = self._now(), 0

    async def within(self, step: Awaitable[T]) -> T:
        """Raises asyncio.TimeoutError. Not by asyncio.wait_for: before Python 3.12 that loses the cancelling of a
        client who leaves in the moment in which its last bytes arrive."""
        end = self._start + self._limits.grace_seconds + self.moved / self._limits.bytes_per_second
        task = asyncio.ensure_future(step)
        try:
            await asyncio.wait({task}, timeout=max(0.0, min(self._limits.stall_seconds, end - self._now())))
            if not task.done():
                raise asyncio.TimeoutError
        finally:
            task.cancel()
        return task.result()


async def read_body(http: web.Request, size: int, limits: Limits) -> torch.Tensor:
    """uint8 [size]. Memory is taken as bytes arrive. Raises Refused."""
    raw = torch.empty(size, dtype=torch.uint8)
    view, clock, place = raw.numpy().data, _Clock(limits), 0
    while place < size:
        try:
            chunk = await clock.within(http.content.readany())
        except asyncio.TimeoutError as error:
            raise Refused(
                408, f"worker: expected {size:,} bytes in time, got {place:,} of them. Use a faster connection."
            ) from error
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise Refused(400, f"worker: expected {size:,} bytes, got {place:,}. Send the body whole.")
        view[place : place + len(chunk)] = chunk
        place += len(chunk)
        clock.moved += len(chunk)
    return raw


class Answers:
    def __init__(self, limits: Limits):
        self._limits = limits
        self._open: dict[int, web.Request] = {}  # in the order in which they began

    async def send(self, http: web.Request, pieces: Sequence[memoryview]) -> web.StreamResponse:
        """Write the body `pieces` as a 200."""
        size = sum(piece.nbytes for piece in pieces)
        answer = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE, "Content-Length": str(size)})
        self._make_room()
        self._open[id(http)] = http
        clock = _Clock(self._limits)
        try:
            await clock.within(answer.prepare(http))
            for part in _parts(pieces):
                await clock.within(answer.write(part))
                clock.moved += part.nbytes
            await clock.within(answer.write_eof())
        except asyncio.TimeoutError:
            logger.warning("worker: an answer of %d bytes was not read in time and is given up", size)
            _abort(http)
        except ConnectionError:
            logger.info("worker: an answer of %d bytes was not wanted any more", size)
        finally:
            self._open.pop(id(http), None)
        return answer

    def _make_room(self) -> None:
        while len(self._open) >= self._limits.answers:
            logger.warning("worker: %d answers are not read, the oldest is given up", len(self._open))
            _abort(self._open.pop(next(iter(self._open))))


def _parts(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        for start in range(0, piece.nbytes, PIECE_BYTES):
            yield piece[start : start + PIECE_BYTES]


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()
