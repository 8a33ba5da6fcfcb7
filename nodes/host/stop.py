"""ComfyUI's Stop button, heeded between two pictures, frames or packets while a request is prepared."""

from __future__ import annotations

import sys


def heed_stop() -> None:
    """Raises ComfyUI's own interrupt when Stop was pressed. In a process without ComfyUI nobody can press it."""
    host = sys.modules.get("comfy.model_management")
    if host is not None:
        host.throw_exception_if_processing_interrupted()
