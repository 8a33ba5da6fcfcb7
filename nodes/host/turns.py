"""ComfyUI's progress bar for a node that does the same thing several times, such as once for each prompt.

Contract: `with turns(count, noun) as each:` and `for item in each.over(items):` inside it; what is encoded meanwhile
shares one bar and says which turn it is. They nest: the stretches of a schedule for each prompt. A bar never runs back
nor past its end, whatever it is told: newer passes may do less than was expected, and repeated ones begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import comfy.utils

Item = TypeVar("Item")
UNITS = 1000  # of a shared bar
_open: ContextVar[tuple[Turns, ...]] = ContextVar("turns", default=())


class Bar:
    """Nothing is seen of it before it is moved."""

    def __init__(self, total: int):
        self.total, self._value = total, -1
        self._bar: comfy.utils.ProgressBar | None = None

    def move(self, fraction: float) -> None:
        """To that part of its length, if that is forward."""
        value = min(int(fraction * self.total + 1e-6), self.total)
        if value <= self._value:
            return
        self._value = value
        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(self.total)
        self._bar.update_absolute(value, self.total)


class Turns:
    def __init__(self, count: int, noun: str):
        self.count, self.noun, self.number = count, noun, 1
        self.bar: Bar | None = None  # of the outermost alone, once something was shown

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, one a turn."""
        for self.number, item in enumerate(items, 1):
            yield item


@contextmanager
def turns(count: int, noun: str) -> Iterator[Turns]:
    """A single turn is not worth mentioning."""
    each = Turns(count, noun)
    if count < 2:
        yield each
        return
    token = _open.set((*_open.get(), each))
    try:
        yield each
        if each.bar is not None:
            each.bar.move(1.0)
    finally:
        _open.reset(token)


def which_turn() -> str:
    """ "prompt 2 of 3, " for people; empty where there is one turn."""
    return "".join(f"{each.noun} {each.number} of {each.count}, " for each in _open.get())


def place_among_turns(fraction: float) -> float:
    """What a part of the present turn is of all turns."""
    for each in reversed(_open.get()):
        fraction = (each.number - 1 + fraction) / each.count
    return fraction


def bar_of_turns() -> Bar | None:
    """The bar that all turns share; None where there is one turn."""
    if not _open.get():
        return None
    outermost = _open.get()[0]
    if outermost.bar is None:
        outermost.bar = Bar(UNITS)
    return outermost.bar
