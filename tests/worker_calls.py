"""HTTP calls to a worker, by the standard library alone: what a client of another make would do.

Contract: `call(address, method, path, body, **headers)` -> (status, body). `begin` sends a request and leaves the
connection open, for those who read slowly or go away.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import uuid

import torch
from h3te.encoder.parallel.protocol import JOB_HEADER, EncodeReply, EncodeRequest, Health, JobState, error_text

TIMEOUT = 60


def call(address: tuple[str, int], method: str, path: str, body: bytes | None = None, **headers) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def health(address: tuple[str, int], **headers) -> Health:
    status, body = call(address, "GET", "/health", **headers)
    assert status == 200, body
    return Health.from_bytes(body)


def job_state(address: tuple[str, int], job: str) -> JobState:
    """Of a job whose request has been sent: the worker may not have read its head yet."""

    def known() -> bytes | None:
        status, body = call(address, "GET", f"/jobs/{job}")
        return body if status == 200 else None

    return JobState.from_bytes(until(known, 5))


def new_id() -> str:
    return uuid.uuid4().hex


def encode(address: tuple[str, int], request: EncodeRequest | bytes, job: str | None = None, **headers) -> tuple:
    """(200, EncodeReply) or (status, text)"""
    body = request if isinstance(request, bytes) else request.to_bytes()
    status, answer = call(address, "POST", "/encode", body, **{JOB_HEADER: job or new_id(), **headers})
    return status, EncodeReply.from_bytes(answer) if status == 200 else error_text(answer)


class Encoding(threading.Thread):
    """An encode that runs beside the test; `outcome()` waits for it."""

    def __init__(self, address: tuple[str, int], request: EncodeRequest | bytes, job: str | None = None):
        super().__init__(daemon=True)
        self.address, self.request, self.job = address, request, job or new_id()
        self.found: tuple | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = encode(self.address, self.request, self.job)
        except OSError as error:
            self.found = (0, str(error))

    def outcome(self) -> tuple:
        self.join(TIMEOUT)
        assert self.found is not None, "no answer"
        return self.found


def begin(address: tuple[str, int], request: EncodeRequest, job: str, most: int | None = None) -> socket.socket:
    """The head and the first `most` bytes of the body (None: all of it); the socket has a small receive buffer."""
    body = request.to_bytes()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(TIMEOUT)
    sock.connect(address)
    lines = ["POST /encode HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", f"{JOB_HEADER}: {job}"]
    head = "\r\n".join([*lines, "Connection: close", "", ""])
    sock.sendall(head.encode() + body[:most])
    return sock


def received(sock: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = bytearray()
    try:
        while piece := sock.recv(65_536):
            found += piece
    except ConnectionError:
        pass
    finally:
        sock.close()
    return bytes(found)


def until(condition, seconds: float = 20.0):
    """What `condition()` gives once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come about in time")


def text_request(told: Health, tokens: int = 12, start: int = 100, **changes) -> EncodeRequest:
    given = {"checkpoint": told.weights, "dtype": told.dtype, "tap_layer": told.tap_layer}
    return EncodeRequest(**{"input_ids": torch.arange(start, start + tokens), **given, **changes})


def sent(done, told, **changes) -> EncodeRequest:
    """What a client makes of a finished local encode."""
    given = {"checkpoint": told.weights, "dtype": told.dtype, "tap_layer": told.tap_layer}
    names = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
    for modality, (pixels, grids) in names.items():
        patches = getattr(done.presentation, modality)
        if patches is not None:
            given |= {pixels: patches.pixel_values.to(getattr(torch, told.dtype)), grids: patches.grid_thw}
    return EncodeRequest(done.token_ids, **given, **changes)


def message(body: bytes) -> str:
    return json.loads(body)["error"]
