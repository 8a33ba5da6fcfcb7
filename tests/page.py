"""What a page of ComfyUI is told while a node runs, without a server.

Contract: `page` (import the fixture, and `comfy`) executes node "7" for the length of a test: `.lines` are the texts it
was sent, first lines alone, every one of them; `.texts` the whole; `.bars` one list of (value, total) for each bar, in
the order of their making. `page.again()` is another run of the node.
"""

from __future__ import annotations

import html
import itertools
import sys
from types import SimpleNamespace

import pytest

from .comfy_host import comfy  # noqa: F401 (fixture)

NODE = "7"
_prompts = itertools.count()


def as_plain_text(sent: str) -> str:
    """The text in what a node is sent: one piece of HTML, lines broken as HTML breaks them."""
    assert sent.startswith("<span>") and sent.endswith("</span>") and "\n" not in sent
    return html.unescape(sent.removeprefix("<span>").removesuffix("</span>").replace("<br>", "\n"))


class Page:
    def __init__(self):
        self.sent: list[tuple[str, str]] = []
        self.bars: list[list[tuple[int, int]]] = []

    @property
    def texts(self) -> list[str]:
        assert {node for node, _ in self.sent} <= {NODE}
        return [as_plain_text(text) for _, text in self.sent]

    @property
    def lines(self) -> list[str]:
        return [text.partition("\n")[0] for text in self.texts]

    def again(self):
        from comfy_execution.utils import CurrentNodeContext

        return CurrentNodeContext(f"page {next(_prompts)}", NODE)

    def only_bar(self) -> list[tuple[int, int]]:
        """That of the only bar there was, which ran forward to its end and no further."""
        assert len(self.bars) == 1
        values, totals = zip(*self.bars[0], strict=True)
        assert list(values) == sorted(set(values))
        assert set(totals) == {values[-1]}
        return self.bars[0]


@pytest.fixture
def page(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host import node_text, turns

    told = Page()
    instance = SimpleNamespace(send_progress_text=lambda text, node: told.sent.append((node, text)))
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    monkeypatch.setattr(node_text, "PAUSE", 0.0)

    class ProgressBar:  # newer releases drop what comes too fast
        def __init__(self, total: int):
            self.steps: list = []
            told.bars.append(self.steps)

        def update_absolute(self, value: int, total: int) -> None:
            self.steps.append((value, total))

    monkeypatch.setattr(turns.comfy.utils, "ProgressBar", ProgressBar)
    with told.again():
        yield told
