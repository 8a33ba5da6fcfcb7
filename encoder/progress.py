"""Progress of an encode: one call after each vision block and decoder layer.

Contract: `progress(done, total, what)`; an exception raised in it stops the encode and leaves the encoder usable.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]


class Steps:
    """Counts the steps of one run for a progress callback."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, what)
