"""How long each part of an encode takes, by hooks on modules whose names are the checkpoint's: ours and transformers'.

Contract: `Stopwatch(visual, layers)` stays on the model; `restart()` before an encode, `parts(seconds)` after it ->
seconds by part: vision (patch embedding to the last block), mergers, decoder (first layer to last), and what was
added with `timed(name)`; `rest` is what is left of `seconds`. "unpack" happens inside the decoder and is taken out of
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps

from torch import nn


class Stopwatch:
    def __init__(self, visual: nn.Module | None, layers: Sequence[nn.Module]):
        self.restart()
        layers[0].register_forward_pre_hook(lambda *_: self._began("decoder"))
        layers[-1].register_forward_hook(lambda *_: self._ended("decoder"))
        if visual is None:
            return
        visual.patch_embed.register_forward_pre_hook(lambda *_: self._began("tower"))
        visual.merger.register_forward_hook(lambda *_: self._ended("tower"))
        for merger in (visual.merger, *visual.deepstack_merger_list):
            merger.register_forward_pre_hook(lambda *_: self._add("mergers", -time.perf_counter()))
            merger.register_forward_hook(lambda *_: self._add("mergers", time.perf_counter()))

    def restart(self) -> None:
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._sums: dict[str, float] = {}

    def timed(self, name: str, function: Callable) -> Callable:
        """`function`, its seconds counted under `name`."""

        @wraps(function)
        def counted(*args, **kwargs):
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._add(name, time.perf_counter() - started)

        return counted

    def parts(self, seconds: float) -> dict[str, float]:
        """Of an encode that took `seconds`."""
        spans = {name: self._last[name] - first for name, first in self._first.items()}
        sums = {name: spent for name, spent in self._sums.items() if spent > 0}
        found = {**sums, "decoder": spans.get("decoder", 0.0) - sums.get("unpack", 0.0)}
        if "tower" in spans:
            found["vision"] = spans["tower"] - found.get("mergers", 0.0)
        return {**found, "rest": seconds - sum(found.values())}

    def _began(self, name: str) -> None:
        self._first.setdefault(name, time.perf_counter())

    def _ended(self, name: str) -> None:
        self._last[name] = time.perf_counter()

    def _add(self, name: str, spent: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + spent
