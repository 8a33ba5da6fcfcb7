"""The jobs of a worker: admitted, waiting, running, answered.

Contract: everything but `take` and `finish`, which the computing thread calls, belongs to the thread of the event loop.
A job is admitted before its body is read, so that what is on its way counts too: at most `queue` jobs before the
running one, and at most two bodies of the largest size in memory. Its state can be asked for under the client's id,
also for a while after it ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ..protocol import EncodeReply, EncodeRequest, JobState
from .settings import Limits

REMEMBERED = 256  # states of jobs that ended
CANCELLED = "worker: expected the client to wait for its job, got a cancel. Send the request again if it is wanted."


class Refused(Exception):
    """What a client is told instead of a result: an HTTP status and a text."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status, self.text = status, text


class Job:
    """state: replaced whole, by either thread. result: an EncodeReply, or Refused."""

    def __init__(self, job_id: str, size: int, result: asyncio.Future[Any]):
        self.id, self.size, self.result = job_id, size, result
        self.body: torch.Tensor | None = None
        self.request: EncodeRequest | None = None
        self.cancelled = threading.Event()
        self.state = JobState("waiting", what="receiving")

    def progress(self, done: int, total: int, what: str) -> None:
        self.state = JobState("running", 0, done, total, what)

    def let_go(self) -> None:
        """Its body is needed no longer, and counts no longer."""
        self.request = None  # first: the computing thread looks at it last
        self.body, self.size = None, 0


class Unload:
    """Between two jobs: drop the weights."""

    def __init__(self, result: asyncio.Future[Any]):
        self.result = result


class Board:
    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop):
        self._limits, self._loop = limits, loop
        self._jobs: dict[str, Job] = {}
        self._ended: OrderedDict[str, JobState] = OrderedDict()
        self._waiting: deque[Job | Unload] = deque()
        self._turn = threading.Condition()
        self._running: Job | Unload | None = None
        self._closed: Refused | None = None

    # the event loop's side

    @property
    def waiting(self) -> int:
        """Jobs before the running one: received or being received."""
        return sum(job.state.state == "waiting" for job in self._jobs.values())

    def admit(self, job_id: str, size: int) -> Job:
        """Raises Refused."""
        if self._closed is not None:
            raise Refused(self._closed.status, self._closed.text)
        if job_id in self._jobs or job_id in self._ended:
            raise Refused(400, f"worker: expected a new job id, got {job_id} again. Make one for each request.")
        if self.waiting >= self._limits.queue:
            raise Refused(503, f"worker: expected a free place in the queue, got {self.waiting} jobs. Try again later.")
        held = sum(job.size for job in self._jobs.values())
        if held and held + size > 2 * self._limits.body_bytes:
            raise Refused(503, f"worker: expected room for {size:,} bytes beside {held:,}, got none. Try again later.")
        self._jobs[job_id] = job = Job(job_id, size, self._loop.create_future())
        return job

    def enqueue(self, job: Job, body: torch.Tensor, request: EncodeRequest) -> None:
        if self._closed is not None:
            raise Refused(self._closed.status, self._closed.text)
        if job.cancelled.is_set():
            raise Refused(410, CANCELLED)
        job.body, job.request = body, request
        job.state = JobState("waiting")
        with self._turn:
            self._waiting.append(job)
            self._turn.notify()

    def state(self, job_id: str) -> JobState | None:
        job = self._jobs.get(job_id)
        if job is None:
            return self._ended.get(job_id)
        return replace(job.state, position=self._position(job)) if job.state.state == "waiting" else job.state

    def _position(self, job: Job) -> int:
        with self._turn:
            before = list(self._waiting)
            place = before.index(job) if job in before else len(before)
            return place + (self._running is not None)

    def cancel(self, job_id: str) -> JobState | None:
        """A waiting job ends at once, a running one at its next step."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.cancelled.set()
            with self._turn:
                waits = job in self._waiting
                if waits:
                    self._waiting.remove(job)
            if waits:
                self._end(job, Refused(410, CANCELLED))
        return self.state(job_id)

    def leave(self, job: Job, gone: bool = False) -> None:
        """The client has its answer, or is gone: nothing of the job is held any longer, but for what computes it."""
        self.cancel(job.id)
        state = job.state
        if state.state in ("waiting", "running"):
            state = JobState("cancelled" if gone else "failed")
        self._jobs.pop(job.id, None)
        self._ended[job.id] = state
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def unload(self) -> asyncio.Future[Any]:
        """A turn of its own after what waits now; who asks meanwhile shares it."""
        with self._turn:
            asked = next((each for each in self._waiting if isinstance(each, Unload)), None)
            if asked is None:
                asked = Unload(self._loop.create_future())
                if self._closed is not None:
                    asked.result.set_exception(self._closed)
                    return asked.result
                self._waiting.append(asked)
                self._turn.notify()
        return asked.result

    def close(self, text: str) -> None:
        """No job is taken any more; each that is not done ends with this text."""
        self._closed = Refused(503, text)
        with self._turn:
            left = [*self._waiting, *([self._running] if self._running is not None else [])]
            self._waiting.clear()
            self._turn.notify()
        for each in left:
            if isinstance(each, Job):
                each.cancelled.set()
            self._end(each, Refused(503, text))

    def _end(self, each: Job | Unload, outcome: EncodeReply | Refused | None) -> None:
        if isinstance(each, Job):
            each.let_go()
            if each.state.state in ("waiting", "running"):
                each.state = JobState(_state_of(outcome))
        if each.result.done():  # the client is gone
            return
        if isinstance(outcome, Refused):
            each.result.set_exception(outcome)
        else:
            each.result.set_result(outcome)

    # the computing thread's side

    def take(self, seconds: float) -> Job | Unload | None:
        """What is next, which is then running; None after that time without anything."""
        with self._turn:
            if not self._waiting:
                self._turn.wait(seconds)
            self._running = self._waiting.popleft() if self._waiting else None
            if isinstance(self._running, Job):
                self._running.progress(0, 0, "")
            return self._running

    def finish(self, each: Job | Unload, outcome: EncodeReply | Refused | None) -> None:
        with self._turn:
            self._running = None
        with suppress(RuntimeError):  # the loop is closed: the worker ends, and nobody waits any more
            self._loop.call_soon_threadsafe(self._end, each, outcome)


def _state_of(outcome: EncodeReply | Refused | None) -> str:
    if isinstance(outcome, EncodeReply):
        return "done"
    return "cancelled" if isinstance(outcome, Refused) and outcome.status == 410 else "failed"
