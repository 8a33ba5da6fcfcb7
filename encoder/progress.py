"""Progress of an encode: one call after each vision block and decoder layer, and while weights are read.

Contract: `progress(done, total, what)`; an exception raised in it stops the encode and leaves the encoder usable.
`what` is for people, and begins with what is done: `stage_of(what)` tells which part of an encode that is, here and in
what a worker says.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]

READING = "weights"  # from the file into memory; done and total are bytes
PLACING = "placing weights"  # on a device; bytes too
LOADING = "loading weights"  # by a worker, in parts of its own
VISION_BLOCK = "vision block"
LAYER = "layer"
LOAD, VISION, DECODER = "load", "vision", "decoder"  # the parts of an encode, in their order


class Steps:
    """Counts the steps of one run for a progress callback."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, what)


def step_text(what: str, index: int, count: int) -> str:
    """index: from 0 on."""
    return f"{what} {index + 1} of {count}"


def stage_of(what: str) -> str | None:
    """LOAD, VISION or DECODER; None for anything else, such as a place in a queue."""
    if what.endswith(READING):
        return LOAD
    stages = {VISION_BLOCK: VISION, LAYER: DECODER}
    return next((stage for start, stage in stages.items() if what.startswith(start)), None)
