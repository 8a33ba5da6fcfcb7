"""What a worker answers, read with bounds; what it refuses, as errors that say what to do.

Contract: `read_answer(response, most)` -> the body of an answer of status 200, never more than `most` bytes. Everything
else is an error: ValueError for a request that is at fault, RuntimeError for a worker that is.
"""

from __future__ import annotations

import asyncio

import aiohttp

from ..protocol import error_text
from ..received import MAX_JSON_BYTES
from .addresses import WHO, WorkerAddress, WorkerUnreachable

STALLED_SECONDS = 60  # without a byte of an answer that has begun
_PIECE = 1 << 18
_ADVICE = {
    400: "Change the request as it says",
    401: "Put the worker's token behind its address in workers.txt, or for this machine into H3TE_WORKER_TOKEN",
    403: "Ask it by an address of its own machine, or start it with a token and list that here",
    404: "Check that this is the address of a worker of this pack",
    409: "Load the text encoder again, or start the worker with that checkpoint",
    410: "Queue the prompt again",
    413: "Give fewer or smaller references, or start the worker with higher limits",
    500: "The worker's own log says more",
    503: "Try again later, or start another worker",
}
_OF_THE_REQUEST = (400, 413)


def unreachable(address: WorkerAddress, error: BaseException) -> WorkerUnreachable:
    said = _plain(_cause(error))
    return WorkerUnreachable(
        f"{WHO} {address}: expected a worker that answers, got none ({said.rstrip('.')}). Start it there with python "
        "worker.py CHECKPOINT, look at its log if it ended, or empty remote in the options."
    )


def _cause(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return "nothing listens there" if refused else error.os_error.strerror or str(error.os_error)
    return str(error) or "no answer"


async def read_answer(response: aiohttp.ClientResponse, address: WorkerAddress, most: int) -> bytearray:
    """Raises ValueError or RuntimeError for another status, and RuntimeError for an answer that is too long."""
    if response.status != 200:
        raise _refused(response.status, address, await _read(response, address, MAX_JSON_BYTES))
    return await _read(response, address, most)


async def _read(response: aiohttp.ClientResponse, address: WorkerAddress, most: int) -> bytearray:
    expected, body = response.content_length, bytearray()
    if expected is not None and expected > most:
        raise _too_long(address, most, f"{expected:,}")
    while piece := await asyncio.wait_for(response.content.read(_PIECE), STALLED_SECONDS):
        body += piece
        if len(body) > most:
            raise _too_long(address, most, "more")
    return body


def _too_long(address: WorkerAddress, most: int, got: str) -> RuntimeError:
    return RuntimeError(
        f"{WHO} {address}: expected an answer of at most {most:,} bytes, got {got}. Use the same release of the pack "
        "on both machines, and check that this is the address of a worker."
    )


def _refused(status: int, address: WorkerAddress, body: bytes) -> Exception:
    kind = ValueError if status in _OF_THE_REQUEST else RuntimeError
    if 300 <= status < 400:
        return kind(
            f"{WHO} {address}: expected the worker itself to answer, got a redirect ({status}), which is never "
            "followed. Give the address that it leads to."
        )
    said, advice = _plain(error_text(bytes(body))).removeprefix("worker: "), _ADVICE.get(status, _ADVICE[404])
    return kind(f"{WHO} {address}: {said.rstrip('.') or 'no reason given'} (HTTP {status}). {advice}.")


def _plain(text: str) -> str:
    """What another machine says, on one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
