"""A check without a GPU: no operation may mix devices while `meta` stands for the accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, META = torch.device("cpu"), torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Raises when an op mixes devices; a meta compute device alone would let matmul and indexing pass."""

    MOVES = ("aten._to_copy.default", "aten.copy_.default")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim() > 0]
        devices = {t.device.type for t in tensors}
        if len(devices) > 1 and str(func) not in self.MOVES:
            raise RuntimeError(f"{func}: tensors on {sorted(devices)}")
        return func(*args, **(kwargs or {}))


@contextmanager
def without_autocast() -> Iterator[None]:
    """meta knows no autocast, for which transformers 4 asks only to turn it off. Not for several threads."""
    with mock.patch.object(torch, "autocast", lambda **_: nullcontext()):
        yield
