"""Keys and values of what stands before the rows that are computed, layer by layer, and those of the rows themselves.

Contract: `Past(before, ...)` belongs to one segment and one run; `followed_by(key, value)` is called once a layer, in
order. It notes the layer's own for those that follow in the same run (`pair`) and for who keeps them (`kept`, on the
CPU), and gives them with everything before in front. What rests elsewhere comes to the device for that layer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values [rows, Hkv, Dh], keys rotated


class Before(Protocol):
    """What has keys and values of a layer: a kept node, or the Past of a segment that came before in this run."""

    def pair(self, layer: int) -> Pair: ...


class Past:
    def __init__(self, before: Sequence[tuple[Before, int]], keep_rows: int = 0, followed: bool = False):
        """before: (what, how many of its first rows), in order. keep_rows: of the segment's own, to be kept. followed:
        other segments of this run will ask for them."""
        self.before, self.keep_rows, self.followed = before, keep_rows, followed
        self.kept: list[Pair] = []
        self._layer = -1
        self._own: Pair | None = None

    def followed_by(self, key: torch.Tensor, value: torch.Tensor) -> Pair:
        """Own key and value [S, Hkv, Dh] of the next layer -> those of all rows so far [P + S, Hkv, Dh]."""
        self._layer += 1
        self._own = (key, value) if self.followed else None
        if self.keep_rows:
            self.kept.append((at_rest(key, self.keep_rows), at_rest(value, self.keep_rows)))
        if not self.before:
            return key, value
        parts = [(*(x[:rows].to(key.device) for x in what.pair(self._layer)),) for what, rows in self.before]
        keys, values = zip(*parts, (key, value), strict=True)
        return torch.cat(keys), torch.cat(values)

    def pair(self, layer: int) -> Pair:
        """Own keys and values of the layer that runs."""
        return cast("Pair", self._own)  # whoever asks is followed


def at_rest(x: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """The first rows on the CPU, in memory of exactly their size: as they are where they are that already. What is on
    the meta device has nothing to move."""
    part = x[:rows] if x.is_meta else x[:rows].to("cpu")
    return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part
