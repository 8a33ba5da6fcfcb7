"""ComfyUI's page as a person uses it: drop a workflow, type, link, click chips, queue; and what it shows.

Contract: a `ComfyPage` wraps a playwright page. Nodes are named by id; `chips(id)` is [{text, label, state}] of the row
under a node's prompt. Positions and texts are read off the page; links are made through ComfyUI's own graph.
"""

from __future__ import annotations

import json
from pathlib import Path

from web_scripts import BOXES, CHIPS, DROP, FIT, HEAR, LINK, MARK_FIELD, NODES, REMOVE, SELECT, SET, TEXT, VIEW_OF

TYPES_OF_COMFYUI = 100  # registered when the page is ready
HELP_BUTTON = "[data-testid='info-button'], .help-button, .selection-toolbox .pi-question-circle"
CHANGED = 10_000  # milliseconds until the page must have followed


class ComfyPage:
    def __init__(self, page, url: str, nodes2: bool = False):
        self.page, self.url, self.nodes2 = page, url, nodes2
        self.blocked: list[str] = []  # requests that were not for the server
        self.asked: list[str] = []  # requests by scripts of ours
        self.console: list[str] = []
        self.errors: list[str] = []  # of ours

    def open(self) -> None:
        """Opens or reloads the page and waits until ComfyUI is there."""
        self.page.goto(self.url, wait_until="domcontentloaded")
        self.page.wait_for_function(
            "(least) => window.app?.graph && Object.keys(window.LiteGraph.registered_node_types).length > least",
            arg=TYPES_OF_COMFYUI,
            timeout=120_000,
        )
        self.page.wait_for_function("() => !document.querySelector('#vue-app .p-blockui-mask')")
        self.page.wait_for_timeout(1500)
        self.close_windows()

    def close(self) -> None:
        self.page.context.close()

    def close_windows(self) -> None:
        """Greetings and dialogs that lie over the canvas."""
        for _ in range(2):
            self.page.keyboard.press("Escape")

    def run(self, script: str, given=None):
        """Evaluates a function of web_scripts.py, or any other, in the page."""
        return self.page.evaluate(script, given)

    # the graph

    def load(self, workflow: dict) -> None:
        """As if it had been opened from a file; its nodes are there afterwards."""
        self.run("(data) => window.app.loadGraphData(data)", workflow)
        self.settle()

    def drop(self, path: Path) -> None:
        """Drops a file on the canvas."""
        self.run(DROP, {"name": path.name, "text": path.read_text(encoding="utf-8")})
        self.page.wait_for_function("() => window.app.graph.nodes.length > 0", timeout=CHANGED)
        self.settle()

    def clear(self) -> None:
        self.run("() => window.app.graph.clear()")

    def add(self, kind: str, at: tuple[int, int] = (80, 120), **values) -> int:
        """A new node of a type, as from the menu; returns its id."""
        script = """([kind, at, values]) => {
          const node = window.LiteGraph.createNode(kind);
          node.pos = at;
          window.app.graph.add(node);
          for (const [name, value] of Object.entries(values)) node.widgets.find((w) => w.name === name).value = value;
          return Number(node.id);
        }"""
        return self.run(script, [kind, list(at), values])

    def link(self, origin: int, target: int, name: str, slot: int = 0) -> None:
        """An output of one node to a named input of another."""
        self.run(LINK, [origin, slot, target, name])

    def unlink(self, target: int, name: str) -> None:
        self.run(LINK, [None, 0, target, name])

    def set(self, node: int, name: str, value) -> None:
        """A widget of a node, as if it had been set there."""
        self.run(SET, [node, name, value])

    def set_mode(self, node: int, mode: int) -> None:
        """0 runs, 2 is muted, 4 is bypassed."""
        self.run("([id, mode]) => { window.app.graph.getNodeById(id).mode = mode; }", [node, mode])

    def remove(self, node: int) -> None:
        self.run(REMOVE, node)

    def node_of(self, kind: str) -> int:
        """The id of the first node of that type."""
        return next(node["id"] for node in self.nodes() if node["type"] == kind)

    def open_help(self, node: int) -> None:
        """The help panel, by the button of a chosen node."""
        self.run(SELECT, node)
        self.settle(500)
        self.page.locator(HELP_BUTTON).first.click()

    def frontend(self) -> tuple[int, ...]:
        """The version of ComfyUI's frontend: major, minor, patch."""
        return tuple(int(part) for part in self.run("() => window.__COMFYUI_FRONTEND_VERSION__").split("."))

    def nodes(self) -> list[dict]:
        return self.run(NODES)

    def saved(self) -> dict:
        return self.run("() => JSON.parse(JSON.stringify(window.app.graph.serialize()))")

    def sent(self) -> dict:
        """What would be queued, in API format."""
        return self.run("async () => JSON.parse(JSON.stringify((await window.app.graphToPrompt()).output))")

    # runs

    def start_run(self) -> None:
        """Queues the graph as the Run button does; what the server says of it is kept in the page."""
        self.run(HEAR)
        self.run("() => window.app.queuePrompt(0, 1)")

    def heard(self) -> dict:
        """{progress, text, errors, ended, stopped} of the run since it was started."""
        return self.run("() => window.heard")

    def wait_for_run(self, milliseconds: int, until: str = "heard.ended || heard.errors.length") -> dict:
        """Waits for what `until` says of `heard`; returns what was heard."""
        self.page.wait_for_function(f"() => {{ const {{ heard }} = window; return {until}; }}", timeout=milliseconds)
        return self.heard()

    def queue(self, milliseconds: int) -> dict:
        """Runs the graph to its end. Raises AssertionError when it fails."""
        self.start_run()
        heard = self.wait_for_run(milliseconds)
        assert heard["errors"] == []
        self.settle()
        return heard

    # a prompt and its chips

    def chips(self, node: int) -> list[dict]:
        return self.run(CHIPS, node)["chips"]

    def note(self, node: int) -> str:
        return self.run(CHIPS, node)["note"]

    def wait_for_note(self, node: int, expected: str) -> None:
        """Until the line of text behind the chips is this one. Raises AssertionError with what it is instead."""
        script = f"([node, expected]) => ({CHIPS})(node).note === expected"
        try:
            self.page.wait_for_function(script, arg=[node, expected], timeout=CHANGED)
        except Exception as error:
            raise AssertionError(f"note of node {node}: expected {expected!r}, got {self.note(node)!r}.") from error

    def wait_for_chips(self, node: int, expected: list[tuple[str, str]]) -> None:
        """Until the row shows just these labels and states. Raises AssertionError with what it shows instead."""
        script = f"""([node, expected]) => {{
          const shown = ({CHIPS})(node).chips.map(({{ label, state }}) => [label, state]);
          return JSON.stringify(shown) === expected;
        }}"""
        text = json.dumps([list(pair) for pair in expected], separators=(",", ":"))
        try:
            self.page.wait_for_function(script, arg=[node, text], timeout=CHANGED)
        except Exception as error:
            shown = [(chip["label"], chip["state"]) for chip in self.chips(node)]
            raise AssertionError(f"chips of node {node}: expected {expected}, got {shown}.") from error

    def chip(self, node: int, label: str):
        """The chip of a label as something to click."""
        return self.page.locator(f'[data-h3te-node="{node}"] button[data-label="{label}"]')

    def field(self, node: int):
        """The prompt's text field, as it is drawn."""
        if self.nodes2:
            return self.page.locator(f'[data-node-id="{node}"] textarea').first
        self.run(MARK_FIELD, node)
        return self.page.locator(f'textarea[data-h3te-field="{node}"]')

    def type(self, node: int, text: str) -> None:
        """Replaces the prompt by typing."""
        self.field(node).fill(text)

    def prompt(self, node: int) -> str:
        return self.run("(id) => window.app.graph.getNodeById(id).widgets.find((w) => w.name === 'prompt').value", node)

    def text_on(self, node: int) -> str:
        """What the node says about its run, as it is drawn."""
        return self.run(TEXT, node)

    # how it looks

    def settle(self, milliseconds: int = 1200) -> None:
        self.page.wait_for_timeout(milliseconds)

    def fit(self, *nodes: int, scale: float | None = None) -> None:
        """All of the graph, or these nodes, in view, with none chosen: ComfyUI cuts fields around a chosen one."""
        self.run(FIT, [list(nodes), scale])
        self.settle(800)

    def picture(self, path: Path, *nodes: int) -> Path:
        """A screenshot, of the whole page or around these nodes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        clip = self.run(VIEW_OF, list(nodes)) if nodes else None
        self.page.screenshot(path=str(path), **({"clip": clip} if clip else {}))
        return path

    def boxes(self) -> list[dict]:
        """{id, type, box: [x, y, width, height]} of every node as it is drawn, in the canvas' units."""
        return self.run(BOXES)

    def kept(self) -> dict[str, int]:
        """What scripts of ours left running on the page."""
        return self.run("() => Object.fromEntries(Object.entries(window.h3teKept).map(([k, v]) => [k, v.size]))")
