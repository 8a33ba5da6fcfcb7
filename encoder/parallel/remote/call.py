"""A coroutine at work in a thread with an event loop of its own, for callers that have none or must not wait in theirs.

Contract: `Call(make)` starts at once; `wait(seconds)` says whether it ended, `result()` gives its value or raises its
error, once; `cancel()` returns at once and lets it clean up alone. Nothing is left when it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Call(Generic[Value]):
    def __init__(self, make: Callable[[], Coroutine[Any, Any, Value]]):
        self._make = make
        self._begun, self._ended = threading.Event(), threading.Event()
        # a daemon: a worker that hangs must not keep the process from ending
        threading.Thread(target=lambda: asyncio.run(self._run()), name="h3te remote", daemon=True).start()

    async def _run(self) -> None:
        task = asyncio.create_task(self._make())
        self._loop, self._task = asyncio.get_running_loop(), task
        self._begun.set()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # seen: asyncio would report it where nobody waits for the result
        self._ended.set()

    def wait(self, seconds: float | None = None) -> bool:
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        self._begun.wait()
        with suppress(RuntimeError):  # it has ended, and its loop with it
            self._loop.call_soon_threadsafe(self._task.cancel)

    def result(self) -> Value:
        """Waits for the end."""
        self._ended.wait()
        task, self._task = self._task, None
        try:
            return task.result()
        finally:
            del task  # an error holds this frame, and must not hold itself through it
