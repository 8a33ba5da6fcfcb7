"""The token embedding, kept outside the module tree: only the rows of a request are looked up, on the CPU.

Contract: `TokenTable(vocab_size, width, dtype)(ids [S], device, dtype) -> [S, D]`. It takes weights as a leaf does
(leaf.py): plain, packed, or resting in its file. Inside the tree ComfyUI would reserve several times its 1.5 GB while
loading partially.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .leaf import Rest
from .packing import Packing, unpack
from .parallel.group import ALONE, TensorParallel


class TokenTable:
    """[V, D]. `parallel`: V are the rows of one rank, which looks up the ids among them; the others' come by the
    sum."""

    def __init__(self, vocab_size: int, width: int, dtype: torch.dtype, parallel: TensorParallel = ALONE):
        self.parallel, self.size = parallel, (vocab_size, width)
        self.weight = torch.empty((vocab_size, width), dtype=dtype, device="meta")
        self.packing: Packing | None = None
        self.rest: Rest | None = None

    def announce(self, packing: Packing) -> None:
        self.assign("weight", torch.empty((packing.nbytes,), dtype=torch.uint8, device="meta"))
        self.packing = packing

    def store(self, rest: Rest, input_scale: torch.Tensor | None = None) -> None:
        self.rest = rest

    def assign(self, attribute: str, tensor: torch.Tensor) -> None:
        self.weight, self.packing, self.rest = tensor, None, None

    def rests(self, attribute: str) -> bool:
        return self.rest is not None

    def __call__(self, ids: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """ids int64 [S] -> embeddings [S, D] on `device`."""
        if self.parallel.size == 1:
            return self._look_up(ids, device, dtype)
        rows, width = self.size
        own = ids - self.parallel.rank * rows
        places = ((own >= 0) & (own < rows)).nonzero().flatten()
        found = torch.zeros(len(ids), width, dtype=dtype, device=device)
        if len(places):
            found[places.to(device)] = self._look_up(own[places], device, dtype)
        return self.parallel.sum(found)

    def _look_up(self, ids: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        if (rest := self.rest) is None:
            rows = F.embedding(ids.to(self.weight.device), self.weight)
        else:
            used, places = ids.unique(return_inverse=True)
            rows = self._rows(rest, used, dtype)[places]
        return rows.to(device=device, dtype=dtype)

    def _rows(self, rest: Rest, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        parts = rest.row_parts(ids)
        if self.packing is None:
            return parts["weight"]
        return unpack(self.packing.of_rows(len(ids)), parts, dtype)
