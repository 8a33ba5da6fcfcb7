"""A worker as its callers see it: questions that block, whatever loop the caller's own thread may run.

Contract: `RemoteWorker(address, token)` opens nothing by itself. `health`, `encode`, `unload` raise RuntimeError for a
worker that cannot be asked or fails, ValueError for a request that it refuses; both say what to do. `progress(done,
total, what)` is called in the caller's thread, a few times a second; total 0: nothing is counted yet. An error raised
in it cancels the job and leaves at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...progress import Progress
from ..protocol import EncodeReply, EncodeRequest, Health, JobState
from .addresses import WHO, WorkerAddress
from .call import Call
from .patience import ASK_SECONDS, POLL_SECONDS, TURN_SECONDS

if TYPE_CHECKING:
    from .exchange import Exchange

Answer = TypeVar("Answer")


class RemoteWorker:
    def __init__(self, address: WorkerAddress, token: str | None = None):
        self.address = address
        self._token = token

    def __repr__(self) -> str:
        return f"RemoteWorker({self.address})"

    def health(self, seconds: float = ASK_SECONDS, while_waiting: Callable[[], None] | None = None) -> Health:
        """seconds: until it is taken for unreachable. What `while_waiting` raises ends the question at once."""
        exchange = self._exchange()
        call = Call(lambda: exchange.ask("GET", "/health", seconds))
        return self._understood(Health.from_bytes, _awaited(call, while_waiting))

    def unload(self, wait: float = ASK_SECONDS) -> bool:
        """The worker gives up its weights, after what waits there, until somebody asks it to encode. False where it has
        not said so after `wait` seconds; it does so all the same."""
        exchange = self._exchange()
        call = Call(lambda: exchange.ask("POST", "/unload", TURN_SECONDS))
        if not call.wait(wait):
            return False
        call.result()
        return True

    def encode(self, request: EncodeRequest, width: int, progress: Progress | None = None) -> EncodeReply:
        """width: of the hidden states that are expected, which bounds the answer."""
        exchange, most = self._exchange(), EncodeReply.most_bytes(len(request.input_ids), width, request.dtype)
        tell = None if progress is None else lambda: progress(*_step(exchange.state))
        answer = _awaited(Call(lambda: exchange.encode(request, most)), tell)
        return self._understood(EncodeReply.from_bytes, answer)

    def _understood(self, read: Callable[[bytes | bytearray], Answer], body: bytes | bytearray) -> Answer:
        """What is wrong with an answer is the worker's fault, not the request's."""
        try:
            return read(body)
        except ValueError as error:
            raise RuntimeError(f"{WHO} {self.address}: {error}") from error

    def _exchange(self) -> Exchange:
        from .exchange import Exchange  # aiohttp with it, which only who asks a worker needs

        return Exchange(self.address, self._token)


def _awaited(call: Call[Answer], meanwhile: Callable[[], None] | None) -> Answer:
    """What `meanwhile`, called a few times a second, raises leaves at once and cancels the call."""
    try:
        while not call.wait(POLL_SECONDS):
            if meanwhile is not None:
                meanwhile()
    except BaseException:
        call.cancel()
        raise
    return call.result()


def _step(state: JobState | None) -> tuple[int, int, str]:
    if state is None:
        return 0, 0, "sent to the worker"
    if state.state == "waiting":
        return 0, 0, f"waiting, {state.position} before you"
    return state.done, state.total, state.what
