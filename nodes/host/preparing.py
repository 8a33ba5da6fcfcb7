"""What is being made ready before an encode, said on the node that runs; Stop is heard.

Contract: needs no ComfyUI to be imported: without one nothing is said, and nobody can press Stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from . import node_text
from .stop import heed_stop

Item = TypeVar("Item")


def told_each(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, each said on the node that runs while it is made ready; Stop is heard before each."""
    for number, item in enumerate(items, 1):
        heed_stop()
        node_text.say(f"{what} {number} of {len(items)}")
        yield item


def told(what: str) -> None:
    """Said on the node that runs, if nothing was a moment ago; Stop is heard."""
    heed_stop()
    node_text.say(what)
