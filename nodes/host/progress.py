"""ComfyUI's progress bar, a line on the node that runs, and Stop, for all that a CLIP is waited for.

Contract: `HostProgress` for one call of a CLIP. It is called with (done, total, what), as encoder/progress.py has them,
by whoever reads, places or computes, and raises ComfyUI's own interrupt when Stop was pressed. One bar stands for all
of it, weights first; `turns.py` joins the bars of several calls. `seconds` has the time of each part. Times on an
accelerator are its own (pace.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import torch

from ...encoder.progress import DECODER, LOAD, LOADING, PLACING, READING, VISION, stage_of
from . import node_text
from .pace import Pace
from .placing import PATCHING
from .stop import heed_stop
from .turns import Bar, bar_of_turns, place_among_turns, which_turn

UNKNOWN = 100  # units of a pass whose steps are not known yet
_CPU = torch.device("cpu")


class HostProgress:
    """show: bar and line. loads: what is worth showing of the load. device: where is computed. `steps`: how many a pass
    will have, 0 where that is not known. `before`, `behind`: what the line says beside the step."""

    def __init__(self, show: bool = True, loads: Collection[str] = (), device: torch.device = _CPU):
        self.show, self.loads, self.steps = show, loads, 0
        self.before = self.behind = ""
        self.seconds: dict[str, float] = {}
        self._pace, self._since = Pace(device), time.perf_counter()
        self._bar: Bar | None = None
        self._loaded: dict[str, float] = {}  # of each of `loads`, the part that is done
        self._load_units = self._units = 0  # of the load and of a pass; their sum is a turn
        self._line = self._turn = ""

    def __call__(self, done: int, total: int, what: str) -> None:
        # asked here on every step: newer releases throttle the bar, and with it their own check
        heed_stop()
        stage = stage_of(what)
        if stage in (VISION, DECODER):
            self._pace.step(settle=_ends(what))
        if stage is not None:
            self.ends(stage)
        if self.show and (stage != LOAD or what in self.loads):
            self._show(done, total, what, stage)

    def begin(self) -> None:
        """The time until the next step is that step's."""
        self._since = time.perf_counter()

    def ends(self, stage: str) -> None:
        """The time since the last step was this stage's."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def finish(self) -> None:
        """All is encoded, whatever was left to do."""
        if self._bar is not None:
            self._bar.move(place_among_turns(1.0))
        if self.show and self.seconds:
            total = sum(self.seconds.values())
            self._say(f"encoded in {total:.1f} s: {times(self.seconds)}{self.behind}", at_once=True)

    def stopped(self) -> None:
        """By Stop or an error: where that was."""
        if self._line:
            node_text.say(f"stopped at {self._line}", at_once=True)

    def _show(self, done: int, total: int, what: str, stage: str | None) -> None:
        if total:
            self._move(done / total, total, what, stage)
            self._say(self._text(done, total, what), at_once=done == total or _ends(what))
        elif what and stage is None:
            self._say(f"{what}{self.behind}")

    def _move(self, part: float, total: int, what: str, stage: str | None) -> None:
        if self._bar is None:
            self._units = self.steps or UNKNOWN if stage == LOAD else total
            self._load_units = self._units if stage == LOAD else 0
            self._bar, self._turn = bar_of_turns() or Bar(self._load_units + self._units), which_turn()
        load = self._load_units if which_turn() == self._turn else 0  # weights are loaded once, in the first turn
        if stage == LOAD:
            self._loaded[what] = part
            own = load * sum(self._loaded.values()) / len(self.loads)
        else:
            own = load + self._units * part
        self._bar.move(place_among_turns(own / (load + self._units)))

    def _text(self, done: int, total: int, what: str) -> str:
        if what in (READING, PLACING):
            return f"{'reading weights' if what == READING else what}: {_gigabytes(done, total)}"
        if what in (LOADING, PATCHING):
            return f"{what}: {done} of {total}{self.behind}"
        return f"{what}{self.behind}"

    def _say(self, text: str, at_once: bool = False) -> None:
        self._line = f"{which_turn()}{self.before}{text}"
        node_text.say(self._line, at_once)


def times(seconds: Mapping[str, float]) -> str:
    """For people, in the order of an encode."""
    return ", ".join(f"{stage} {seconds[stage]:.2f} s" for stage in (LOAD, VISION, DECODER) if stage in seconds)


def _ends(what: str) -> bool:
    """Whether a step is the last of its kind: "vision block 27 of 27"."""
    numbers = [word for word in what.split() if word.isdigit()]
    return len(numbers) == 2 and numbers[0] == numbers[1]


def _gigabytes(done: int, total: int) -> str:
    digits = 1 if total >= 10**9 else 2
    return f"{done / 1e9:.{digits}f} of {total / 1e9:.{digits}f} GB"
