"""Text on a node, sent to the page by ComfyUI itself: no JavaScript of ours is needed.

Contract: `show(node_id, text)` sends what stays; `say(line)` what is true at the moment, a few times a second at most,
to the node that ComfyUI executes in this thread, whichever node it is. What was shown in the same run of that node
stands below the line. Without a server nothing is sent, and `say` sends nothing where no node is executed. The page
shows text as it is: the classic canvas takes what arrives for HTML, Nodes 2.0 for Markdown; `as_page_text` is both.
"""

from __future__ import annotations

import html
import re
import sys
import time
from typing import Any

PAUSE = 0.25  # seconds between two lines, but for those that are said at once
LONG_AGO = float("-inf")
MARKDOWN = re.compile(r"[\\`*_\[\]~]")  # what means something inside a line


class _Said:
    """What the node that runs has said so far. run: as ComfyUI names it (prompt, node, place in a list)."""

    run: Any = None
    when = LONG_AGO
    below = ""

    def follow(self, run: Any) -> None:
        if run != self.run:
            self.run, self.when, self.below = run, LONG_AGO, ""


_said = _Said()


def show(node_id: str | None, text: str) -> None:
    """What the node says until it runs again, or until the encode that follows is over."""
    run = _running()
    if run is not None and run.node_id == node_id:
        _said.follow(run)
        _said.below, _said.when = text, LONG_AGO
    _send(node_id, text)


def say(line: str, at_once: bool = False) -> None:
    """The first line of a run is said at once too."""
    run = _running()
    if run is None:
        return
    _said.follow(run)
    now = time.monotonic()
    if at_once or now - _said.when >= PAUSE:
        _said.when = now
        _send(run.node_id, f"{line}\n{_said.below}" if _said.below else line)


def _running() -> Any:
    """ComfyUI's execution context of this thread; None outside of a node, and in processes without its executor."""
    utils = sys.modules.get("comfy_execution.utils")
    return None if utils is None else utils.get_executing_context()


def _send(node_id: str | None, text: str) -> None:
    # In-process users (tests, scripts) have no server.
    server = getattr(sys.modules.get("server"), "PromptServer", None)
    instance = getattr(server, "instance", None)
    if instance is not None and node_id is not None:
        instance.send_progress_text(as_page_text(text), node_id)


def as_page_text(text: str) -> str:
    """As HTML that is Markdown too: a "<Picture 4>" and a `file_name_2` stay as they are, lines stay lines, and nothing
    that a prompt or a file's name says becomes a picture, a link or a list."""
    safe = MARKDOWN.sub(lambda found: f"&#{ord(found.group())};", html.escape(text, quote=False))
    return f"<span>{safe}</span>".replace("\n", "<br>")
