"""The thread that computes, the same on every rank: rank 0 takes what is next from the board and tells the others.

Contract: `run()` returns never and raises when the worker has to end: RankLost, or WorkerEnds when this rank cannot go
on. A job that fails on any rank ends on all of them with that rank's text; then the next one is taken. No rank begins
anything that the others do not: every step is agreed on (control.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..protocol import EncodeReply, EncodeRequest
from .board import CANCELLED, Board, Job, Refused, Unload
from .control import CANCEL, ENCODE, GO, TICK, UNLOAD, Control, RankLost, Stopped
from .engine import Engine

logger = logging.getLogger(__name__)

TICK_SECONDS = 10.0


class WorkerEnds(RuntimeError):
    """This process cannot compute any more."""


@dataclass
class _Failure:
    """What this rank raised, as text: the error itself would hold the memory of the attempt."""

    text: str
    status: int
    fatal: bool = False


class JobLoop:
    def __init__(self, engine: Engine, control: Control, board: Board | None = None):
        """board: on rank 0 alone."""
        self._engine, self._control, self._board = engine, control, board

    def run(self) -> None:
        self._engine.enter()
        turn = self._follow if self._board is None else self._lead
        while True:
            turn()

    def _lead(self) -> None:
        each = self._board.take(TICK_SECONDS)
        if each is None:
            self._control.send(TICK)
            return
        outcome = self._do(each)  # where it raises, `each` is ended with the board, which knows by then who is lost
        self._board.finish(each, outcome)

    def _do(self, each: Job | Unload) -> EncodeReply | Refused | None:
        if isinstance(each, Unload):
            return self._together(lambda step: self._engine.unload(), send=lambda: self._control.send(UNLOAD))
        body, request = each.body, each.request
        if request is None:  # the worker ends
            self._control.send(TICK)
            return Refused(503, "worker: expected to go on, got told to end. Start it again.")
        return self._together(
            lambda step: self._engine.encode(request, step),
            lambda: self._control.send(ENCODE, body),
            each.progress,
            each.cancelled.is_set,
        )

    def _follow(self) -> None:
        received: list[Any] = []

        def work(step: Any) -> object:
            command, body = received
            if command == UNLOAD:
                return self._engine.unload()
            return self._engine.encode(EncodeRequest.from_bytes(body), step)

        def receive() -> bool:
            received[:] = self._control.receive()
            return received[0] != TICK

        self._together(work, receive)

    def _together(
        self,
        work: Callable[..., Any],
        send: Callable[[], object],
        progress: Callable[[int, int, str], None] = lambda done, total, what: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> object:
        """The result of `work(step)`, or why there is none. The same calls of the control on all ranks."""
        failure: _Failure | None = None

        def step(done: int, total: int, what: str) -> None:
            self._control.agree(CANCEL if is_cancelled() else GO)
            progress(done, total, what)

        result = None
        try:
            if send() is False:
                return None
            self._control.agree(CANCEL if is_cancelled() else GO)
            try:
                result = work(step)
            except (Stopped, RankLost):
                raise
            except Exception as error:
                failure = _failure(error)
                logger.exception("worker: rank %d", self._control.rank)
            self._control.agree(GO if failure is None else self._control.failure)
        except Stopped as stopped:
            code, rank = stopped.code, stopped.failed_rank
        else:
            return result
        return self._ended(code, rank, failure)

    def _ended(self, code: int, rank: int | None, failure: _Failure | None) -> Refused:
        """After all ranks have left the work."""
        if code == CANCEL:
            return Refused(410, CANCELLED)
        own = failure or _Failure("no memory for the request", 500)
        told = self._control.text_of(rank, f"{own.status} {int(own.fatal)} {own.text}")
        status, fatal, text = told.split(" ", 2)
        self._engine.recover()
        if fatal == "1":
            raise WorkerEnds(self._named(rank, text))
        return Refused(int(status), self._named(rank, text))

    def _named(self, rank: int, text: str) -> str:
        return text if self._control.size == 1 else f"rank {rank} of {self._control.size}: {text}"


def _failure(error: Exception) -> _Failure:
    if isinstance(error, ValueError):
        return _Failure(str(error), 400)
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error):
        return _Failure(
            f"worker: expected enough memory, got none left ({str(error).splitlines()[0]:.300}). Send less at once, "
            "use more ranks, or start the worker with --reader stream.",
            500,
        )
    fatal = isinstance(error, getattr(torch, "AcceleratorError", ()))  # the GPU takes no more work of this process
    text = (
        str(error) if ": expected " in str(error) else f"{type(error).__name__}: {error}"
    )  # ours speak for themselves
    return _Failure(text[:3000], 500, fatal)
