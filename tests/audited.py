"""What Python itself reports of dangerous acts (PEP 578), in whatever library they happen.

Contract: within `forbidden(*events)` each of these events, in any thread, raises and is listed in what the context
gives. The hook stays for the life of the process, as Python has it, and does nothing outside of a context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNPICKLING = ("pickle.find_class",)
NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
           "socket.gethostbyname", "urllib.Request", "http.client.connect")  # fmt: skip
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile")

_watched: set[str] = set()
_seen: list[str] = []
_installed = False


class Forbidden(BaseException):
    """Not an Exception: nothing may swallow it."""


def _hook(event: str, arguments: tuple) -> None:
    if event in _watched:
        _seen.append(f"{event} {arguments!r:.200}")
        raise Forbidden(_seen[-1])


@contextmanager
def forbidden(*events: str) -> Iterator[list[str]]:
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    _seen.clear()
    _watched.update(events)
    try:
        yield _seen
    finally:
        _watched.clear()
    assert _seen == []
