"""When ranks agree, with each other and with one process."""

from __future__ import annotations

import torch

SIZES = (2, 4)
FLOAT32 = 1e-5  # of the largest value
BFLOAT16 = 1.2  # times the error of one process, relative L2 against float32


def largest_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def agree(found: dict[int, dict[str, torch.Tensor]], size: int) -> dict[str, torch.Tensor]:
    """What rank 0 has; every rank of the group has the same bits, the others nothing."""
    for rank, tensors in found.items():
        assert tensors.keys() == (found[0].keys() if rank < size else set())
        assert all(torch.equal(tensor, found[0][name]) for name, tensor in tensors.items())
    return found[0]
