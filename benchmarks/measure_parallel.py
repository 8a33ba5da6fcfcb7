"""One request on one encoder or on the ranks that share it, gloo on this machine's processors. Prints one line of JSON.

    measure_parallel.py SIZE FOLDER prompt|keyframes|references --layers 4 --tokenizer FOLDER --out FILE

SIZE processes start, each with its share of the cores; `ranks` lists what each of them found. Weights are read into
memory before the clock starts, and a small request with a picture comes first. bytes_read: by the reader's own count;
resident: after loading, without what torch alone takes; peak: the most beyond that; sums: what the rank gave into them
in this one request, and how long it waited there. Rank 0 leaves its hidden states in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from memory_peak import peak, reset_peak, resident
from pack import h3te_module
from peers import Ours
from shapes import SHAPES, WARM_UP, Shape

AGREEMENTS = 200
WAIT = timedelta(minutes=30)  # of a rank for another one


@dataclass
class Sums:
    """What one rank gave into sums."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


def counting(rank: int, size: int):
    """A TensorParallel of the default group, and the Sums that it counts."""
    base = h3te_module("encoder.parallel").TensorParallel

    @dataclass(frozen=True)
    class Counting(base):
        sums: Sums = field(default_factory=Sums, compare=False)

        def add_up(self, total: torch.Tensor) -> None:
            started = time.perf_counter()
            super().add_up(total)
            self.sums.count += 1
            self.sums.bytes += total.nbytes
            self.sums.seconds += time.perf_counter() - started

    parallel = Counting(rank, size)
    return parallel, parallel.sums


def measure(rank: int, size: int, folder: Path, shape: Shape, layers: int, tokenizer: Path, out: Path) -> dict:
    """On one rank; the others do the same."""
    base = resident()
    parallel, sums = counting(rank, size)
    peer = Ours(folder, layers, tokenizer, reader="read", parallel=parallel)
    peer.encoder.materialise()
    loaded = resident() - base
    peer.encode(*WARM_UP.request())
    reset_peak()
    peer.watch.restart()
    sums.count = sums.bytes = sums.seconds = 0
    started = time.perf_counter()
    ids, hidden = peer.encode(*shape.request())
    seconds = time.perf_counter() - started
    found = {"sums": dict(vars(sums)), "peak": peak() - base - loaded}
    if rank == 0:
        from safetensors.torch import save_file

        save_file({"hidden": hidden.contiguous()}, out)
    return found | {
        "rank": rank,
        "tokens": len(ids),
        "seconds": seconds,
        "parts": peer.watch.parts(seconds),
        "bytes_read": peer.encoder.source.files.bytes_read,
        "weight_bytes": peer.encoder.weight_bytes,
        "resident": loaded,
        "agree_seconds": agreement(rank, size),
    }


def agreement(rank: int, size: int) -> float:
    """How long the ranks of a worker take to agree on a step."""
    control = h3te_module("encoder.parallel.worker.control").Control(rank, size)
    started = time.perf_counter()
    for _ in range(AGREEMENTS):
        control.agree()
    return (time.perf_counter() - started) / AGREEMENTS


def start(size: int, arguments: Sequence[str]) -> dict:
    """All ranks as processes; raises RuntimeError with the words of one that failed."""
    threads = str(max(1, (os.cpu_count() or 1) // size))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        command = [sys.executable, __file__, *arguments, "--store", str(store), "--rank"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks = [subprocess.Popen([*command, str(rank)], env=environment, **pipes) for rank in range(size)]
        try:
            said = [rank.communicate() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    failed = [error for rank, (_, error) in zip(ranks, said, strict=True) if rank.returncode]
    if failed:
        raise RuntimeError(f"bench parallel: expected figures of {size} ranks, got an error:\n{failed[0][-1500:]}")
    return {"size": size, "threads": int(threads), "ranks": [json.loads(out.splitlines()[-1]) for out, _ in said]}


def join(rank: int, size: int, store: Path) -> None:
    if size > 1:
        at = f"file://{store}"
        torch.distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=size, timeout=WAIT)


def part(size: int) -> None:
    """All ranks are done: gloo's threads end before the process does, which would abort otherwise."""
    if size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one request on several ranks.")
    parser.add_argument("size", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    of = parser.parse_args()
    if of.rank is None:
        print(json.dumps(start(of.size, sys.argv[1:])))
        return
    join(of.rank, of.size, of.store)
    with torch.no_grad():
        found = measure(of.rank, of.size, of.folder, SHAPES[of.shape], of.layers, of.tokenizer, of.out)
    part(of.size)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
