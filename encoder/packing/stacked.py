"""One plain tensor stored as several slices along an axis: a patch embedding whose frames lie apart.

Contract: part i is the slice at index i of `axis`, in `dtype`; the first is called "weight", the others "weight.1" and
so on. Source: llama.cpp's vision files, which split a convolution over two frames into one per frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .packing import Packing, Part, Parts


@dataclass(frozen=True)
class Stacked(Packing):
    """`shape`: with the axis; a part's shape is without it."""

    dtype: torch.dtype = torch.float16
    axis: int = 2

    name = "stacked"

    @property
    def parts(self) -> dict[str, Part]:
        part = Part(self.dtype, (*self.shape[: self.axis], *self.shape[self.axis + 1 :]))
        return {f"weight.{i}" if i else "weight": part for i in range(self.shape[self.axis])}

    def rows(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        slices = [parts[name][start:stop] for name in self.parts]
        return torch.stack(slices, dim=self.axis).float().flatten(1)
