"""Workers as people start them: `worker.py` under torchrun, watched from outside.

Contract: `StartedWorker(checkpoint, ranks, *arguments)` as a context; `.address` once it is ready, `.ranks` gives the
process of each rank, `.said()` its log, `.ended()` the exit status. Nothing outlives the context.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
from h3te_tests.tiny_weights import TAP_LAYER
from h3te_tests.worker_calls import until

SCRIPT = Path(__file__).resolve().parents[2] / "worker.py"
_READY = re.compile(r"at http://([0-9.]+):([0-9]+), ([0-9]+) ranks?, .*, ready")


class StartedWorker:
    def __init__(self, checkpoint: Path, ranks: int, *arguments: str, script: Path = SCRIPT, **variables: str):
        command = [sys.executable, str(script), str(checkpoint), "--ranks", str(ranks), "--port", "0"]
        command += ["--device", "cpu", "--tap-layer", str(TAP_LAYER), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.size = ranks
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            self._lines.append(line)

    def __enter__(self) -> StartedWorker:
        try:
            found = until(self._found, 120)
        except AssertionError:
            self.__exit__()
            raise AssertionError(f"the worker did not start: {self.said()}") from None
        self.address = (found[1], int(found[2]))
        return self

    def __exit__(self, *error) -> None:
        children = self._family()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        for child in children:  # ours alone, by their own numbers
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._listener.join(30)

    def _found(self) -> re.Match | None:
        if self._process.poll() is not None:
            raise AssertionError("it ended")
        return _READY.search(self.said())

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    @property
    def launcher(self) -> psutil.Process:
        """torchrun, or the one process."""
        return psutil.Process(self._process.pid)

    @property
    def ranks(self) -> list[psutil.Process]:
        """By rank; one process alone is its own."""
        if self.size == 1:
            return [self.launcher]
        found = {int(p.environ()["RANK"]): p for p in self._family() if "RANK" in p.environ()}
        return [found[i] for i in range(self.size)]

    def said(self) -> str:
        return "".join(self._lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float = 60) -> int:
        """The exit status, once the whole family is gone."""
        status = self._process.wait(seconds)
        self._listener.join(30)
        return status
