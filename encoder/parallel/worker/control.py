"""How the ranks of a worker stay together: commands from rank 0, and one agreement before every step.

Contract: `agree(code)` is one collective in which every rank takes part, and all get the largest code: 0 to go on,
CANCEL, or that a rank failed. It stands before each step and before each sum of the encoder, so that a rank which
raises anywhere meets the others at their next one instead of leaving them waiting in a sum: nobody waits for a rank
that is alive and not coming. Only int64 and uint8 tensors on the CPU travel, through a gloo group of its own. A
collective that breaks, or ranks that are not at the same place, are `RankLost`, after which the worker ends.
With one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ..group import TensorParallel

GO, CANCEL = 0, 1
TICK, ENCODE, UNLOAD = range(3)
_FAILED = 1000  # minus the rank: of several that fail the first is named
_TEXT_BYTES = 4096


class RankLost(RuntimeError):
    """The ranks cannot go on together."""


class Stopped(Exception):
    """All ranks leave the work that they are in, for the same reason."""

    def __init__(self, code: int):
        self.code = code

    @property
    def failed_rank(self) -> int | None:
        return _FAILED - self.code if self.code > CANCEL else None


class Control:
    def __init__(self, rank: int = 0, size: int = 1, group: object = None):
        self.rank, self.size, self.group = rank, size, group
        self._count = 0

    @property
    def failure(self) -> int:
        """The code by which this rank says that it failed."""
        return _FAILED - self.rank

    def agree(self, code: int = GO, rows: int = 0) -> None:
        """Raises Stopped on all ranks unless all say GO. rows: what they are about to add up, the same for all."""
        if self.size > 1:
            self._count += 1
            told = torch.tensor([code, self._count, -self._count, rows, -rows])
            self._collective(lambda: dist.all_reduce(told, dist.ReduceOp.MAX, group=self.group))
            code, most, least, widest, narrowest = told.tolist()
            if most != -least or (code == GO and widest != -narrowest):
                raise RankLost(
                    f"ranks are at different places (steps {-least} to {most}, {-narrowest} to {widest} values)"
                )
        if code != GO:
            raise Stopped(code)

    def send(self, command: int, body: torch.Tensor | None = None) -> torch.Tensor | None:
        """From rank 0: a command and the bytes that belong to it. Returns body. Raises Stopped where a rank has no
        memory for it."""
        if self.size > 1:
            self._broadcast(torch.tensor([command, 0 if body is None else body.numel()]))
            if body is not None:
                self.agree()
                self._broadcast(body)
        return body

    def receive(self) -> tuple[int, torch.Tensor | None]:
        """On the other ranks: what rank 0 sends next; ticks keep it from waiting for ever. Raises as `send`."""
        head = torch.zeros(2, dtype=torch.int64)
        self._broadcast(head)
        command, size = head.tolist()
        return command, self._received(size) if size else None

    def _received(self, size: int) -> torch.Tensor:
        body = torch.empty(0, dtype=torch.uint8)
        try:
            body = torch.empty(size, dtype=torch.uint8)
        except (RuntimeError, MemoryError):
            self.agree(self.failure)
        self.agree()
        self._broadcast(body)
        return body

    def text_of(self, rank: int, text: str) -> str:
        """What `rank` says, on all ranks; the others' text does not count."""
        if self.size == 1:
            return text
        raw = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        encoded = text.encode("utf-8", "replace")[:_TEXT_BYTES]
        raw[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        self._broadcast(raw, rank)
        return raw.numpy().tobytes().rstrip(b"\0").decode("utf-8", "ignore")

    def check_alike(self, facts: str) -> None:
        """Raises RankLost on all ranks unless each of them says what rank 0 says."""
        differs = self.text_of(0, facts) != facts
        try:
            self.agree(self.failure if differs else GO)
        except Stopped as stopped:
            raise RankLost(
                "worker: expected the checkpoint, options and release of rank 0 on all ranks, got others on rank "
                f"{stopped.failed_rank}. Start all of them alike."
            ) from None

    def _broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        self._collective(lambda: dist.broadcast(tensor, source, group=self.group))

    def _collective(self, act: Callable[[], object]) -> None:
        try:
            act()
        except RuntimeError as error:
            raise RankLost(f"a rank cannot be reached ({str(error).splitlines()[0]:.300})") from error


@dataclass(frozen=True)
class AgreedParallel(TensorParallel):
    """As TensorParallel; before each sum all ranks agree that they are there."""

    control: Control = field(default_factory=Control, compare=False)

    def add_up(self, total: torch.Tensor) -> None:
        self.control.agree(rows=total.numel())
        try:
            super().add_up(total)
        except RuntimeError as error:
            raise RankLost(f"a sum did not come about ({str(error).splitlines()[0]:.300})") from error
