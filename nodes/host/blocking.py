"""Outputs that are not there: what ComfyUI runs on them is skipped without an error."""

from __future__ import annotations

from comfy_execution.graph_utils import ExecutionBlocker

BLOCKED = ExecutionBlocker(None)
