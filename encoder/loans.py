"""Weights that several requests use in turn: borrowed and unpacked once for all of them, one page at a time.

Contract: `Loans(pages)`, a page being the modules of one layer; `turn_to(i)` before they run, and `end()` after the
last one, an error or Stop. Each leaf of the page is then borrowed at its first use, in the dtype of that use, and lends
the same until the next page or the end. One encode at a time: what is lent is noted on the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn


class Loans:
    def __init__(self, pages: Sequence[Sequence[nn.Module]]):
        self._pages: list[list[Any]] = [
            [leaf for m in page for leaf in m.modules() if hasattr(leaf, "lend_until")] for page in pages
        ]
        self._open = ExitStack()

    def turn_to(self, index: int) -> None:
        """Page `index` is used next; what the last one lent is given back."""
        self.end()
        for leaf in self._pages[index]:
            leaf.lend_until(self._open)

    def end(self) -> None:
        """Everything that is lent is given back."""
        self._open.close()
