"""A pool of rank processes for tests: gloo over a file, one job at a time, hangs told by rank.

Contract: `RankPool(size, folder)` starts `size` processes once (importing torch takes seconds). `run(job, size,
**arguments)` gives {rank: tensors} of the function `job` in jobs.py, which the first `size` ranks share and the others
see from outside. A rank that raises, dies or is silent for SECONDS fails the test with its number and what it said; the
pool is then started afresh for the next job. `errors` gives the messages instead, where every rank must refuse.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from h3te_tests.parallel.rank import MARK
from safetensors.torch import load_file

SECONDS = 120  # of one job; torch.distributed waits less, so that it tells first who is missing
WAIT = 60
SCRIPT = Path(__file__).resolve().with_name("rank.py")


class _Rank:
    """One process, its answers, and the end of what it printed."""

    def __init__(self, number: int, size: int, store: Path, variables: Mapping[str, str]):
        command = [sys.executable, str(SCRIPT), str(number), str(size), str(store), str(WAIT)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.answers: queue.Queue[dict] = queue.Queue()
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            if line.startswith(MARK):
                self.answers.put(json.loads(line[len(MARK) :]))
            else:
                self.said = [*self.said[-20:], line]
        self.answers.put({"error": f"the process ended. {''.join(self.said)}"})

    def ask(self, request: dict) -> None:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self, until: float) -> dict:
        try:
            return self.answers.get(timeout=max(0.1, until - time.monotonic()))
        except queue.Empty:
            return {"error": f"no answer for {SECONDS} s. {''.join(self.said)}", "hung": True}


class RankPool:
    def __init__(self, size: int, folder: Path, variables: Mapping[str, str]):
        """variables: of the environment of each."""
        self.size, self.folder, self.variables = size, folder, variables
        self._ranks: list[_Rank] = []
        self._count = 0

    def run(self, job: str, size: int, **arguments) -> dict[int, dict[str, torch.Tensor]]:
        answers, outputs = self._ask(job, size, arguments)
        failed = [f"rank {i} of {size}: {answer['error']}" for i, answer in enumerate(answers) if "error" in answer]
        if failed:
            self.close()
            pytest.fail(f"{job}: " + "\n".join(failed))
        return {rank: load_file(output) for rank, output in enumerate(outputs)}

    def errors(self, job: str, size: int, **arguments) -> list[str]:
        """What each rank of the pool refused with; "" where it did not."""
        answers, _ = self._ask(job, size, arguments)
        hung = [i for i, answer in enumerate(answers) if answer.get("hung")]
        if hung:
            self.close()
            pytest.fail(f"{job}: ranks {hung} hung")
        return [answer.get("error", "") for answer in answers]

    def _ask(self, job: str, size: int, arguments: dict) -> tuple[list[dict], list[Path]]:
        self._start()
        self._count += 1
        outputs = [self.folder / f"{self._count}-{i}.safetensors" for i in range(self.size)]
        for rank, output in zip(self._ranks, outputs, strict=True):
            rank.ask({"job": job, "size": size, "arguments": arguments, "out": str(output)})
        until = time.monotonic() + SECONDS
        return [rank.answer(until) for rank in self._ranks], outputs

    def _start(self) -> None:
        if self._ranks:
            return
        self._count += 1
        store = self.folder / f"store-{self._count}"
        self._ranks = [_Rank(i, self.size, store, self.variables) for i in range(self.size)]
        until = time.monotonic() + SECONDS
        failed = [f"rank {i}: {a['error']}" for i, r in enumerate(self._ranks) if "error" in (a := r.answer(until))]
        if failed:
            self.close()
            pytest.fail("the pool did not start: " + "\n".join(failed))

    def close(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
            rank.process.wait()
        self._ranks = []
