"""ComfyUI's progress bar and Stop button for the encoder's progress callback."""

from __future__ import annotations

import comfy.model_management
import comfy.utils


class HostProgress:
    """Call with (done, total, what); total 0: nothing is counted yet. Raises ComfyUI's own interrupt when Stop was
    pressed."""

    def __init__(self, show: bool = True):
        self.show = show
        self.bar = None

    def __call__(self, done: int, total: int, what: str) -> None:
        # asked here on every step: newer releases throttle the bar, and with it their own check
        comfy.model_management.throw_exception_if_processing_interrupted()
        if not self.show or not total:
            return
        if self.bar is None:
            self.bar = comfy.utils.ProgressBar(total)
        self.bar.update_absolute(done, total)
