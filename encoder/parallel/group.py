"""The ranks that share one encoder, and the sum over them.

Contract: `TensorParallel.of(group)` from an initialised torch.distributed (torchrun, NCCL on GPUs, gloo on CPUs);
nothing here starts processes. `sum(x)` adds what the ranks hold of x in float32 and casts once; every rank gets the
same bits. All ranks of a group make the same calls in the same order: whoever drives them gives each the same requests,
stops them at the same step, and gives their prefix stores the same fixed budget. One rank alone is none of this:
`sum` gives x itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

SIZES = (1, 2, 4, 8)
SUMMED_AT_ONCE = 1 << 24  # values: what the float32 copy of a long prompt takes stays bounded


@dataclass(frozen=True)
class TensorParallel:
    """`rank` of `size` in `group` (None: the default group). Raises ValueError for a size that is not served."""

    rank: int = 0
    size: int = 1
    group: object = None

    def __post_init__(self) -> None:
        if self.is_member and self.size not in SIZES:
            raise ValueError(
                f"TensorParallel: expected 1, 2, 4 or 8 ranks, got {self.size}. A rank takes whole heads, and the "
                "released model has 8 key-value heads: start one of these numbers of ranks."
            )
        if self.is_member and not 0 <= self.rank < self.size:
            raise ValueError(
                f"TensorParallel: expected a rank from 0 to {self.size - 1}, got {self.rank}. Use TensorParallel.of()."
            )

    @classmethod
    def of(cls, group: Any = None) -> TensorParallel:
        """This process's place in a group of torch.distributed; None: in the default group. Raises RuntimeError before
        init_process_group, ValueError for a size that is not served."""
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError(
                "TensorParallel: expected torch.distributed with its process group, got none. Start the ranks with "
                "torchrun and call torch.distributed.init_process_group first."
            )
        rank = distributed.get_rank(group)
        return cls(rank, distributed.get_world_size(group), group) if rank >= 0 else cls.outside()

    @classmethod
    def outside(cls) -> TensorParallel:
        """A process that is in no rank of the group: it holds no weights and encodes nothing."""
        return cls(-1, 0)

    @property
    def is_member(self) -> bool:
        return self.rank >= 0

    @property
    def place(self) -> str:
        """For messages: "rank 0 of 2"."""
        return f"rank {self.rank} of {self.size}" if self.is_member else "outside the group"

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """x [...] of every rank -> their sum on each, in x.dtype; x is overwritten. Waits for all ranks."""
        if self.size == 1:
            return x
        x = x.contiguous()
        for part in x.view(-1).split(SUMMED_AT_ONCE):
            total = part.float()  # float32 is summed where it lies
            self.add_up(total)
            if total is not part:
                part.copy_(total)
        return x

    def any(self, here: bool, device: torch.device | str) -> bool:
        """Whether it is so on some rank: then all of them do what follows from it."""
        return here if self.size == 1 else bool(self.sum(torch.tensor([float(here)], device=device)).item())

    def add_up(self, total: torch.Tensor) -> None:
        """float32, of every rank, is their sum on each afterwards: the only thing that ranks exchange."""
        torch.distributed.all_reduce(total, group=self.group)


ALONE = TensorParallel()
