"""Opens workflows in a real browser on a ComfyUI that this starts, and says what its frontend makes of them.

    python scripts/workflow_browser.py [FILE.json ...]      default: the bundled ones

Printed per workflow: node types that the frontend lacks, pairs of nodes that overlap as drawn, nodes outside their
group, widget values that differ from the file, and whether the API graph that the page would queue equals
tests/workflow_api. Pictures go to output/web/workflows. `--nodes2` draws them as Nodes 2.0. COMFYUI_PATH names a
ComfyUI of one's own. Needs what `make test-web` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path

import command
import layout
import setup

FOLDER = layout.ROOT / "workflows"
API = layout.ROOT / "tests" / "workflow_api"
OUT = layout.OUTPUT / "web" / "workflows"


def main() -> int:
    parser = argparse.ArgumentParser(description="Open workflows in a browser.")
    parser.add_argument("files", nargs="*", type=Path, help="workflows to open (default: the bundled ones)")
    parser.add_argument("--nodes2", action="store_true", help="draw them as Nodes 2.0")
    parsed = parser.parse_args()
    host = setup.enter()
    return command.status_of("workflow browser", lambda: run(host, parsed.files or bundled(), parsed.nodes2))


def run(host: Path, files: list[Path], nodes2: bool) -> int:
    import comfy_install
    import web_chromium
    from comfy_server import ComfyServer
    from web_browser import Browser

    chromium = web_chromium.provide()
    base = layout.OUTPUT / "web" / f"base-{comfy_install.host_version(host)}"
    with ComfyServer(host, base=base, log=layout.LOGS / "web.log") as server, Browser(server, chromium) as browser:
        page = browser.page({"width": 3000, "height": 1600}, Comfy__VueNodes__Enabled=nodes2)
        for file in files:
            print(_line(file, page), flush=True)
    comfy_install.unlink_packs(base)
    return 0


def bundled() -> list[Path]:
    """The workflows of the pack."""
    return sorted(FOLDER.glob("*.json"))


def _line(file: Path, page) -> str:
    workflow = json.loads(file.read_text(encoding="utf-8"))
    page.clear()
    page.drop(file)
    page.fit()
    page.picture(OUT / f"{file.stem}.png")
    nodes = page.nodes()
    lacking = sorted({node["type"] for node in nodes if not node["known"]})
    return (
        f"{file.stem}: {len(nodes)} nodes; lacking {lacking}; overlapping {overlapping(page.boxes())}; outside groups "
        f"{outside(page.boxes(), workflow['groups'])}; values changed {changed(workflow, page.saved())}; "
        f"{sent_alike(file.stem, page.sent())}"
    )


def overlapping(boxes: list[dict]) -> list[tuple[int, int]]:
    """Ids of pairs of nodes that cover each other as they are drawn."""
    return [(one["id"], other["id"]) for one, other in combinations(boxes, 2) if _meet(one["box"], other["box"])]


def _meet(a: list[float], b: list[float]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def outside(boxes: list[dict], groups: list[dict]) -> list[int]:
    """Ids of nodes that no group holds whole; notes may lie anywhere."""
    frames = [group["bounding"] for group in groups]
    return [
        node["id"]
        for node in boxes
        if node["type"] != "MarkdownNote" and not any(_holds(frame, node["box"]) for frame in frames)
    ]


def _holds(frame: list[float], box: list[float]) -> bool:
    x, y, width, height = frame
    a, b, wide, high = box
    return x <= a and y <= b and a + wide <= x + width and b + high <= y + height


def changed(workflow: dict, saved: dict) -> list[str]:
    """Nodes whose widget values, saved again, differ from the file's; an empty text may come back as nothing."""
    again = {node["id"]: _values(node) for node in saved["nodes"]}
    return [f"{n['type']} {n['id']}" for n in workflow["nodes"] if _values(n) != again.get(n["id"])]


def _values(node: dict) -> list:
    return [None if value == "" else value for value in node.get("widgets_values") or []]


def sent_alike(name: str, sent: dict) -> str:
    """Whether what the page would queue equals tests/workflow_api."""
    file = API / f"{name}.json"
    if not file.is_file():
        return "no API copy"
    kept = json.loads(file.read_text(encoding="utf-8"))
    return "API graph equal" if _plain(kept) == _plain(sent) else "API graph DIFFERS"


def _plain(graph: dict) -> dict:
    """Without what the page adds for itself."""
    return {
        node: {"class_type": entry["class_type"], "inputs": _inputs(entry)} for node, entry in sorted(graph.items())
    }


def _inputs(entry: dict) -> dict:
    return {name: value for name, value in entry["inputs"].items() if name != "video-preview"}


if __name__ == "__main__":
    sys.exit(main())
