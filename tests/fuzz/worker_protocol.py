"""Fuzz target: what a worker reads of a client, and a client of a worker (contract: safetensors_header.py).

The first byte chooses the reader: bodies of requests and replies, health, states of jobs, errors, addresses, lists of
workers; whole HTTP requests to a server of ours, and whole HTTP answers to a client of ours, over a pair of sockets.
"""

from __future__ import annotations

import json
from random import Random

from . import json_frames
from .accepted import refusal
from .worker_http import answered_client, answered_server, client_seeds, server_seeds

_READERS = ("request", "reply", "health", "state", "error", "address", "list", "server", "client")


def prepare() -> None:
    import h3te.encoder.parallel.protocol
    import h3te.encoder.parallel.remote
    import h3te.encoder.parallel.remote.exchange
    import h3te.encoder.parallel.worker.server
    import h3te.encoder.parallel.worker.settings  # noqa: F401

    from . import worker_http

    worker_http.start()


def seeds() -> dict[str, bytes]:
    import torch
    from h3te.encoder.parallel.protocol import EncodeReply, EncodeRequest, JobState

    from .worker_http import HEALTH

    ids, grid = torch.arange(4), torch.tensor([[1, 2, 2]])
    given = {"checkpoint": "a" * 64, "dtype": "bfloat16", "tap_layer": 50}
    plain = EncodeRequest(ids, **given).to_bytes()
    pictures = EncodeRequest(ids, **given, pixel_values=torch.ones(4, 6), image_grid_thw=grid, reuse=True).to_bytes()
    reply = EncodeReply(torch.ones(4, 3).bfloat16(), torch.ones(4, dtype=torch.int64), 1, 2, 0.5).to_bytes()
    made = {
        "request": [plain, pictures], "reply": [reply], "health": [HEALTH().to_bytes()],
        "state": [JobState("running", 0, 3, 50, "layer 3").to_bytes()], "error": [b'{"error": "worker: expected x"}'],
        "address": [b"127.0.0.1:8189", b"https://gpu.example.org", b"[::1]:80"],
        "list": [b"10.0.0.2:8189 secret # mine\nhttps://gpu.example.org\n"],
        "server": server_seeds(plain), "client": client_seeds(),
    }  # fmt: skip
    return {
        f"{name}{i}": bytes([_READERS.index(name)]) + body
        for name, bodies in made.items()
        for i, body in enumerate(bodies)
    }


def mutated(data: bytes, chance: Random) -> bytes:
    which, body = data[:1], data[1:]
    name = _READERS[which[0] % len(_READERS)] if which else "error"
    if name in ("request", "reply"):
        return which + json_frames.mutated(body, chance)
    if name in ("health", "state", "error"):
        try:
            return which + json.dumps(json_frames.tree_mutated(json.loads(body), chance)).encode()
        except (ValueError, RecursionError):
            return data
    return data


def one(data: bytes) -> None:
    if data:
        _READ[_READERS[data[0] % len(_READERS)]](data[1:])


def _request(body: bytes) -> None:
    from h3te.encoder.parallel.protocol import EncodeRequest

    found = []
    refusal(lambda: found.append(EncodeRequest.from_bytes(body)))
    for request in found:
        again = EncodeRequest.from_bytes(request.to_bytes())
        if again.input_ids.tolist() != request.input_ids.tolist():
            raise AssertionError("a request that was read is another one when it is sent on")


def _reply(body: bytes) -> None:
    from h3te.encoder.parallel.protocol import EncodeReply

    refusal(lambda: EncodeReply.from_bytes(bytearray(body)))


def _health(body: bytes) -> None:
    from h3te.encoder.parallel.protocol import Health

    refusal(lambda: Health.from_bytes(body).identity)


def _state(body: bytes) -> None:
    from h3te.encoder.parallel.protocol import JobState

    refusal(lambda: JobState.from_bytes(body))


def _error(body: bytes) -> None:
    from h3te.encoder.parallel.protocol import error_text

    text = error_text(body)
    if not text.isprintable() or len(text) > 4000:
        raise AssertionError(f"expected one short line, got {text!r:.200}")


def _address(body: bytes) -> None:
    from h3te.encoder.parallel.remote import WorkerAddress, token_for

    text, found = body.decode("utf-8", "surrogatepass" if body[:1] == b"\xed" else "replace"), []
    refusal(lambda: found.append(WorkerAddress.parse(text)))
    for address in found:
        if WorkerAddress.parse(str(address)) != address:
            raise AssertionError(f"{address} is read as another address")
        said = refusal(lambda: token_for(address, [], "secret", "list it"))  # noqa: B023
        if (said is None) != address.is_loopback:
            raise AssertionError(f"{address} may be asked and is not of this machine")


def _list(body: bytes) -> None:
    from h3te.encoder.parallel.remote import read_list

    said = refusal(lambda: read_list(body.decode("utf-8", "replace").splitlines(), "workers.txt"))
    if said and "secret" in said:
        raise AssertionError("a message holds a token")


def _server(body: bytes) -> None:
    answered_server(body)


def _client(body: bytes) -> None:
    answered_client(body)


_READ = {
    "request": _request, "reply": _reply, "health": _health, "state": _state, "error": _error, "address": _address,
    "list": _list, "server": _server, "client": _client,
}  # fmt: skip
