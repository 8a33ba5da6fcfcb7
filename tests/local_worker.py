"""A worker of one process within the tests' own: its event loop in a thread, its encoder open to be watched.

Contract: `LocalWorker(settings)` as a context; `.address`, `.engine`, `.service`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future

from h3te.encoder.parallel.worker.control import Control
from h3te.encoder.parallel.worker.engine import Engine
from h3te.encoder.parallel.worker.ranks import Joined, Place
from h3te.encoder.parallel.worker.service import TOLD_TO_END, Service
from h3te.encoder.parallel.worker.settings import Settings


class LocalWorker:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.engine = Engine(settings)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # the system holds little of an unread answer
        self.address = self.sock.getsockname()
        self.service: Service | None = None
        self._ready: Future = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> LocalWorker:
        self._thread.start()
        self._ready.result(30)
        return self

    def __exit__(self, *error) -> None:
        self.end(TOLD_TO_END)

    def end(self, why: str) -> None:
        if self._thread.is_alive():
            self.service.end(why)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.service = Service(self.settings, Joined(Place(), Control()), self.engine)
        await self.service.start(self.sock)
        self._ready.set_result(None)
        await self.service.stop(await self.service.ended())
