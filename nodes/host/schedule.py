"""The schedule of LoRA hooks on a CLIP: the stretches of sampling for which it is encoded anew.

Contract: while a stretch is handed out, its hooks are in force on the patcher; after the last one, or an error, the
hooks are as at the start of the schedule. Source: `CLIP.encode_from_tokens_scheduled` of ComfyUI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def count_stretches(hooks, wanted: Mapping[str, Any]) -> int:
    """How many `stretches` gives."""
    return sum(_is_wanted(span, wanted) for span, _ in hooks.get_hooks_for_clip_schedule())


def stretches(patcher, hooks, wanted: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    """Start and end of each, as CONDITIONING names them. wanted: start_percent and end_percent leave out the others."""
    hooks.reset()
    patcher.patch_hooks(None)
    try:
        for (start, end), keyframes in hooks.get_hooks_for_clip_schedule():
            if not _is_wanted((start, end), wanted):
                continue
            for hook, keyframe in keyframes:
                hook.hook_keyframe._current_keyframe = keyframe
            patcher.patch_hooks(hooks)
            yield {"clip_start_percent": start, "clip_end_percent": end}
    finally:
        hooks.reset()


def _is_wanted(span: tuple[float, float], wanted: Mapping[str, Any]) -> bool:
    start, end = span
    return end >= wanted.get("start_percent", end) and start <= wanted.get("end_percent", start)
