"""Weights that stay packed in memory: one module per stored format, each a frozen `Packing`."""

from .cutting import cut
from .packing import Packing, Part, Parts, join, split, unpack

__all__ = ["Packing", "Part", "Parts", "cut", "join", "split", "unpack"]
