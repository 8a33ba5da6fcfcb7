"""What a ComfyUI server says while a graph runs: progress, the node that executes, errors. Needs aiohttp (in .venv)."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections.abc import Callable

TEXT = 3  # of ComfyUI's binary messages


class Events:
    """Collects a server's messages on a background thread; a context manager.

    `with Events(client) as events:` must be entered before the graph is queued with the same client. `messages` is a
    list of (type, data, seconds since entry), `texts` one of (node, text) that nodes were told to show, as HTML.
    """

    def __init__(self, client):
        self._address = f"{client.url.replace('http', 'ws', 1)}/ws?clientId={client.client_id}"
        self.messages: list[tuple[str, dict, float]] = []
        self.texts: list[tuple[str, str]] = []
        self._news = threading.Condition()
        self._connected = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Events:
        self._started = time.monotonic()
        self._thread.start()
        if not self._connected.wait(20) or self._error:
            raise RuntimeError(f"events: expected a connection to {self._address}, got {self._error or 'no answer'}.")
        return self

    def __exit__(self, *exception) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)

    def _run(self) -> None:
        self._task = self._loop.create_task(self._listen())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._connected.set()
            self._loop.close()

    async def _listen(self) -> None:
        import aiohttp

        try:
            async with aiohttp.ClientSession() as session, session.ws_connect(self._address, max_msg_size=0) as socket:
                self._connected.set()
                async for message in socket:
                    if message.type == aiohttp.WSMsgType.TEXT:
                        self._keep(json.loads(message.data))
                    elif message.type == aiohttp.WSMsgType.BINARY:
                        self._keep_text(message.data)
        except aiohttp.ClientError as error:
            self._error = error

    def _keep(self, message: dict) -> None:
        with self._news:
            self.messages.append((message["type"], message.get("data") or {}, time.monotonic() - self._started))
            self._news.notify_all()

    def _keep_text(self, message: bytes) -> None:
        """Binary messages are pictures too."""
        kind, size = struct.unpack(">II", message[:8])
        if kind == TEXT:
            with self._news:
                self.texts.append((message[8 : 8 + size].decode(), message[8 + size :].decode()))

    def wait_for(self, accept: Callable[[str, dict], bool], timeout: float = 60) -> dict:
        """The data of the first message (past or to come) for which `accept(type, data)` holds. Raises TimeoutError."""
        ends, seen = time.monotonic() + timeout, 0
        with self._news:
            while True:
                for kind, data, _ in self.messages[seen:]:
                    seen += 1
                    if accept(kind, data):
                        return data
                left = ends - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"events: expected a certain message within {timeout:.0f} s; {seen} others came."
                    )
                self._news.wait(left)
