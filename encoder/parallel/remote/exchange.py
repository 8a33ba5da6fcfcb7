"""One exchange with a worker over HTTP: a short question, or an encode that is watched until its answer is there.

Contract: no redirect is followed, no proxy, cookie or password file of the environment is used, nothing is unpacked, an
answer is bounded before it is read. Connecting has a time limit, looking up the name included; computing has none: as
long as the worker reports that the job is alive, the exchange waits. A cancelled encode cancels its job.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp

from ..protocol import JOB_HEADER, MEDIA_TYPE, EncodeRequest, JobState
from ..received import MAX_JSON_BYTES
from .addresses import WorkerAddress, WorkerUnreachable
from .answers import read_answer, unreachable
from .patience import ASK_SECONDS, POLL_SECONDS

CONNECT_SECONDS = 10.0
LEAVE_SECONDS = 3.0  # for saying that a job is given up
LOST_SECONDS = 30.0  # without a sign of life
_PIECE = 1 << 20
_FAILURES = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Exchange:
    """state: what the worker last said of the job, None before it did."""

    def __init__(self, address: WorkerAddress, token: str | None):
        self._address, self._token = address, token
        self._answering = False
        self.state: JobState | None = None

    async def ask(self, method: str, path: str, seconds: float = ASK_SECONDS) -> bytes:
        """The body of a short answer. Raises as `read_answer`, and WorkerUnreachable."""
        with self._told():
            async with self._session() as session:
                return await self._ask(session, method, path, seconds)

    async def encode(self, request: EncodeRequest, most: int) -> bytearray:
        """The body of the answer. most: bytes of the longest one."""
        job, pieces = secrets.token_hex(16), request.pieces()
        with self._told():
            async with self._session() as session:
                return await self._watched(session, job, self._post(session, job, pieces, most))

    async def _watched(
        self, session: aiohttp.ClientSession, job: str, post: Coroutine[Any, Any, bytearray]
    ) -> bytearray:
        posting, watching = asyncio.create_task(post), asyncio.create_task(self._watch(session, job))
        try:
            await asyncio.wait((posting, watching), return_when=asyncio.FIRST_COMPLETED)
            if not posting.done():
                await watching  # raises what it found, or saw that the answer has begun
            return await posting
        finally:
            answered = posting.done()
            for task in (posting, watching):
                task.cancel()
            await asyncio.gather(posting, watching, return_exceptions=True)
            if not answered:
                with suppress(*_FAILURES, ValueError, RuntimeError):
                    await self._ask(session, "POST", f"/jobs/{job}/cancel", LEAVE_SECONDS)
            posting = watching = task = post = None  # an error holds this frame, and must not hold itself through it

    async def _post(self, session: aiohttp.ClientSession, job: str, pieces: list[memoryview], most: int) -> bytearray:
        size = sum(piece.nbytes for piece in pieces)
        headers = {JOB_HEADER: job, "Content-Type": MEDIA_TYPE, "Content-Length": str(size)}
        url = self._address.url("/encode")
        async with session.post(url, data=_sent(pieces), headers=headers, allow_redirects=False) as response:
            self._answering = True
            return await read_answer(response, self._address, most)

    async def _watch(self, session: aiohttp.ClientSession, job: str) -> None:
        """Until the answer begins. Raises WorkerUnreachable when the job is not heard of any more."""
        heard, error = time.monotonic(), TimeoutError()
        while not self._answering:
            await asyncio.sleep(POLL_SECONDS)
            try:
                self.state = JobState.from_bytes(await self._ask(session, "GET", f"/jobs/{job}", ASK_SECONDS))
                alive = self.state.state in ("waiting", "running")
            except _FAILURES as failed:
                alive, error = False, failed
            except (ValueError, RuntimeError):  # not known yet, as long as its body is on the way; the answer tells
                alive = self.state is None
            heard = time.monotonic() if alive else heard
            if time.monotonic() - heard > LOST_SECONDS:
                raise unreachable(self._address, error)

    async def _ask(self, session: aiohttp.ClientSession, method: str, path: str, seconds: float) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)
        url = self._address.url(path)
        async with session.request(method, url, timeout=timeout, allow_redirects=False) as response:
            return bytes(await read_answer(response, self._address, MAX_JSON_BYTES))

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        headers = {"Accept-Encoding": "identity"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        ) as session:
            yield session

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Failures of the network as one error."""
        try:
            yield
        except WorkerUnreachable:
            raise
        except _FAILURES as error:
            raise unreachable(self._address, error) from error


async def _sent(pieces: list[memoryview]) -> AsyncIterator[memoryview]:
    for piece in pieces:
        for start in range(0, piece.nbytes, _PIECE):
            yield piece[start : start + _PIECE]
