"""The same encode called here and through a worker on this machine, taking turns. Prints one line of JSON.

    measure_remote.py FOLDER prompt|keyframes|references --layers 4 --tokenizer FOLDER --repeats 3

A worker of one rank is started as people start it, and asked by the pack's own client over loopback. Both sides begin
with token ids and float32 patches and end with hidden states, which are equal to the bit; both have encoded a small
request with a picture before. local, remote: seconds; computed: what the worker says that it took; of the rest, `alone`
times what can be timed alone, without a connection: making and reading the bodies of both directions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import layout
import torch
from measure_load import touch
from pack import h3te_module
from peers import Ours
from shapes import SHAPES, WARM_UP, Shape

REPEATS_ALONE = 7
READY_SECONDS = 300
_READY = re.compile(r"at http://(127\.0\.0\.1:\d+),")


@contextmanager
def started(folder: Path, layers: int) -> Iterator[str]:
    """A worker's address."""
    command = [sys.executable, str(layout.ROOT / "worker.py"), str(folder), "--port", "0", "--tap-layer", str(layers)]
    environment = {name: value for name, value in os.environ.items() if name != "H3TE_WORKER_TOKEN"}
    worker = subprocess.Popen([*command, "--device", "cpu"], env=environment, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(READY_SECONDS, worker.kill)
    watchdog.start()
    try:
        yield _address(worker)
    finally:
        watchdog.cancel()
        worker.terminate()
        worker.wait(30)


def _address(worker: subprocess.Popen) -> str:
    """Once it is ready; what it logs later is read too, or the pipe would fill. Raises RuntimeError."""
    said = []
    for line in worker.stderr:
        said.append(line)
        if found := _READY.search(line):
            threading.Thread(target=lambda: [*worker.stderr], daemon=True).start()
            return found[1]
    raise RuntimeError(f"bench parallel: expected a worker that is ready, got its end:\n{''.join(said)[-1500:]}")


class Sides:
    """The two ways to one encode."""

    def __init__(self, peer: Ours, address: str):
        remote = h3te_module("encoder.parallel.remote")
        self.peer, self.protocol = peer, h3te_module("encoder.parallel.protocol")
        self.worker = remote.RemoteWorker(remote.WorkerAddress.parse(address))
        self.health = self.worker.health()

    def given(self, shape: Shape) -> dict[str, torch.Tensor]:
        """Ids and float32 patches."""
        prompt, pictures = shape.request()
        reference = h3te_module("encoder").ImageReference
        presentation = self.peer.present(prompt, [reference(pixels) for pixels in pictures])
        ids = h3te_module("encoder.tokens").tokenize(presentation, self.peer.encoder.tokenizer).ids
        seen = presentation.image
        return {
            "input_ids": ids,
            **({} if seen is None else {"pixel_values": seen.pixel_values, "image_grid_thw": seen.grid_thw}),
        }

    def local(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.peer.encoder.encode_ids(**given)

    def request(self, given: dict[str, torch.Tensor]):
        """As the node makes it: patches in the worker's dtype."""
        told = {"checkpoint": self.health.weights, "dtype": self.health.dtype, "tap_layer": self.health.tap_layer}
        dtype = getattr(torch, self.health.dtype)
        cast = {name: t.to(dtype) if t.is_floating_point() else t for name, t in given.items()}
        return self.protocol.EncodeRequest(**cast, **told)

    def remote(self, given: dict[str, torch.Tensor]):
        """The EncodeReply."""
        return self.worker.encode(self.request(given), self.peer.encoder.config.text.hidden_size)

    def alone(self, given: dict[str, torch.Tensor], reply) -> dict[str, float]:
        """Seconds of making and reading bodies, and their bytes."""
        protocol, request = self.protocol, self.request(given)
        bodies = {"request": bytearray(request.to_bytes()), "reply": bytearray(reply.to_bytes())}
        calls = {
            "make_request": lambda: self.request(given).pieces(),
            "read_request": lambda: self._read(bodies["request"]),
            "make_reply": reply.pieces,
            "read_reply": lambda: protocol.EncodeReply.from_bytes(bodies["reply"]),
        }
        times = {name: statistics.median(timed(call)[0] for _ in range(REPEATS_ALONE)) for name, call in calls.items()}
        return times | {f"{name}_bytes": len(body) for name, body in bodies.items()}

    def _read(self, body: bytearray) -> None:
        """And checked, as the worker does before it queues."""
        request = self.protocol.EncodeRequest.from_bytes(body)
        self.peer.encoder.checked_request(request.input_ids, request.pixel_values, request.image_grid_thw)


def timed(call: Callable):
    """(seconds, what it returned)"""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def measure(peer: Ours, address: str, shape: Shape, repeats: int) -> dict:
    sides = Sides(peer, address)
    touch(peer.tensors())
    small, given = sides.given(WARM_UP), sides.given(shape)
    sides.local(small), sides.remote(small)
    found: dict[str, list] = {"local": [], "remote": [], "computed": []}
    for i in range(repeats):
        done = {}
        for side in ("local", "remote") if i % 2 == 0 else ("remote", "local"):
            seconds, done[side] = timed(lambda side=side: getattr(sides, side)(given))
            found[side].append(seconds)
        found["computed"].append(done["remote"].seconds)
    equal = torch.equal(done["local"], done["remote"].hidden)
    alone = sides.alone(given, done["remote"])
    return {"tokens": len(given["input_ids"]), "equal": equal, "alone": alone, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one request here and through a worker.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    of = parser.parse_args()
    with torch.no_grad(), started(of.folder, of.layers) as address:
        print(json.dumps(measure(Ours(of.folder, of.layers, of.tokenizer), address, SHAPES[of.shape], of.repeats)))


if __name__ == "__main__":
    main()
