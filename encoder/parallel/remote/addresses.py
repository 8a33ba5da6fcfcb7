"""Which workers there are, who says so, and which token belongs to which.

Contract: an address is "host:port", "http://host:port" or "https://host", and nothing else: no user, path or query. A
loopback address (127.x.x.x, ::1, localhost) may always be used. Any other must stand in a list of the machine's owner,
lines of `address [token]`, because a workflow from a stranger must not choose where prompts, pictures and tokens go. A
token goes to the address of its own line alone. No message and no repr holds a token.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

WHO = "Remote text encoder"
PORT = 8189
_PORTS = {"http": PORT, "https": 443}
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,250}[a-z0-9_])?")
_TOKEN = re.compile(r"[!-~]{1,512}")
_ADVICE = "Give host and port alone."
_COMMENT = re.compile(r"(^|\s)#.*")


class UnlistedAddress(ValueError):
    """No loopback address, and in no list of this machine."""


class WorkerUnreachable(RuntimeError):
    """Nobody answers, or not any more."""

    __module__ = "h3te"  # ComfyUI shows it with the message, and the real one begins with the folder of the pack


@dataclass(frozen=True)
class WorkerAddress:
    """host: lower case, without brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> WorkerAddress:
        """Raises ValueError for everything that is not plainly an address."""
        plain = text.strip() if isinstance(text, str) else ""
        try:
            parts = urlsplit(plain if "://" in plain else f"http://{plain}")
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise _no_address(text) from None
        rest = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or "\\" in plain
        if parts.scheme not in _PORTS or rest or port == 0 or not _is_host(host):
            raise _no_address(text)
        return cls(parts.scheme, host, port or _PORTS[parts.scheme])

    @property
    def is_loopback(self) -> bool:
        """By what is written alone: no name is looked up."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self._netloc}{path}"

    def __str__(self) -> str:
        """As people write it."""
        return f"https://{self._netloc}" if self.scheme == "https" else self._netloc

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(host: str) -> bool:
    if ":" not in host:
        return bool(_NAME.fullmatch(host))
    try:
        return ipaddress.ip_address(host).version == 6 and "%" not in host
    except ValueError:
        return False


def _no_address(text: object) -> ValueError:
    shown = repr(re.sub(r".*@", "...@", text, flags=re.DOTALL)) if isinstance(text, str) else type(text).__name__
    return ValueError(
        f"{WHO}: expected a worker's address such as 127.0.0.1:{PORT} or https://gpu.example.org, got {shown:.200}. "
        + _ADVICE
    )


@dataclass(frozen=True)
class ListedWorker:
    address: WorkerAddress
    token: str | None = field(default=None, repr=False)


def read_list(lines: Iterable[str], where: str) -> list[ListedWorker]:
    """Lines of `address [token]`; "#" begins a comment. where: names the list in messages. Raises ValueError that names
    the line."""
    found = []
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).split()
        if words:
            found.append(_listed(words, f"{where}, line {number}"))
    return found


def _listed(words: Sequence[str], where: str) -> ListedWorker:
    if len(words) > 2 or not all(_TOKEN.fullmatch(token) for token in words[1:]):
        raise ValueError(
            f"{where}: expected an address and at most one token of printable ASCII characters, got {len(words)} "
            "words. Correct the line."
        )
    try:
        return ListedWorker(WorkerAddress.parse(words[0]), *words[1:])
    except ValueError:  # it is not shown: who mixes up the order has the token there
        raise ValueError(f"{where}: expected a worker's address first, got something else. {_ADVICE}") from None


def token_for(
    address: WorkerAddress, listed: Iterable[ListedWorker], loopback_token: str | None, how: str
) -> str | None:
    """The token to send there, None for none. loopback_token: for loopback addresses that are not listed with one of
    their own; how: tells where a line is added. Raises UnlistedAddress, and ValueError for a token that cannot be
    sent."""
    own = [worker.token for worker in listed if worker.address == address]
    if not own and not address.is_loopback:
        raise UnlistedAddress(
            f"{WHO}: expected an address of this machine (127.0.0.1) or one that its owner listed, got {address}. A "
            f"workflow alone must not choose where prompts and pictures go: if you trust that machine, {how}."
        )
    token = next((token for token in own if token), loopback_token if address.is_loopback else None)
    if token is not None and not _TOKEN.fullmatch(token):
        raise ValueError(
            f"{WHO}: expected a token of 1 to 512 printable ASCII characters without spaces, got another. Correct it."
        )
    return token
