"""Progress and Stop for transformers' model: one call after each vision block and decoder layer, as the encoder's own.

Contract: `with watched(model, progress, sees=...)` reports what the calling thread computes with the model meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from ...encoder.progress import LAYER, VISION_BLOCK, Progress, Steps, step_text


@contextmanager
def watched(model: nn.Module, progress: Progress | None, *, sees: bool) -> Iterator[None]:
    """sees: the request has pictures; a request with images and videos calls the tower twice, and counts it once."""
    if progress is None:
        yield
        return
    blocks = [*model.visual.blocks] if sees else []
    layers = [*model.language_model.layers]
    steps, thread = Steps(progress, len(blocks) + len(layers)), threading.get_ident()
    handles = []
    for part, modules in ((VISION_BLOCK, blocks), (LAYER, layers)):
        for i, module in enumerate(modules):
            handles.append(module.register_forward_hook(_report(steps, thread, step_text(part, i, len(modules)))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _report(steps: Steps, thread: int, what: str) -> Callable:
    said = []

    def report(*_) -> None:
        if threading.get_ident() != thread:
            return
        if said:  # the second modality: the same step again
            steps.done -= 1
        said.append(what)
        steps(what)

    return report
