"""The pictures of the help pages, taken anew in a real ComfyUI: web/docs/NODE.png for every node.

    COMFYUI_PATH=/path/to/ComfyUI python scripts/help_pictures.py [NODE ...]

Take them in the newest ComfyUI. Needs what the browser tests need (scripts/test_web.py). What a picture shows is in
help_scenes.py. A picture is kept small: its colours are brought down until it is under 60 KB.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import command
import layout
import setup

DOCS = layout.ROOT / "web" / "docs"
BASE = layout.OUTPUT / "help" / "base"
VIEW = {"width": 1200, "height": 1900}
# nothing lies over the nodes
PLAIN = {"Comfy.Graph.CanvasMenu": False, "Comfy.Minimap.Visible": False, "Comfy.NodeBadge.NodeSourceBadgeMode": "None"}
COLOURS = (128, 64, 40, 24)
LARGEST = 60_000
LONGEST = 240_000  # milliseconds
# by loading a workflow, not by clearing the graph: what nodes of the same number showed before goes with it
EMPTY = {"last_link_id": 0, "nodes": [], "links": [], "groups": [], "config": {}, "extra": {}, "version": 0.4}
PLACE = """([id, box, collapsed]) => {
  const node = window.app.graph.getNodeById(id);
  node.pos = box.slice(0, 2);
  node.setSize(box.slice(2));
  if (collapsed && !node.flags.collapsed) node.collapse();
}"""


def main() -> int:
    host = setup.enter()
    return command.status_of("help_pictures", lambda: take(host, sys.argv[1:]))


def take(host: Path, names: list[str]) -> int:
    """Writes the pictures of these nodes, or of all. Raises ValueError for a node that has no scene."""
    import comfy_install
    import web_chromium
    from comfy_server import ComfyServer
    from help_scenes import SCENES
    from web_browser import Browser

    if unknown := set(names) - set(SCENES):
        raise ValueError(f"help_pictures: expected nodes of {', '.join(SCENES)}, got {', '.join(unknown)}. Correct it.")
    chromium = web_chromium.provide()
    _prepare(host)
    try:
        with (
            ComfyServer(host, base=BASE, log=layout.LOGS / "help.log") as server,
            Browser(server, chromium) as browser,
        ):
            page = browser.page(view=VIEW, **PLAIN)
            for number, name in enumerate(names or SCENES):
                page.load({**EMPTY, "last_node_id": 100 * number})
                picture = reduced(_shot(page, SCENES[name]))
                (DOCS / f"{name}.png").write_bytes(picture)
                print(f"  web/docs/{name}.png  {len(picture):,} bytes", flush=True)
    finally:
        comfy_install.unlink_packs(BASE)
    return 0


def _prepare(host: Path) -> None:
    """A base directory with the demo checkpoint, a file of it that breaks off, and the demo's pictures as input."""
    import comfy_install
    import demo_checkpoint
    import given_checkpoint
    from help_scenes import UNFINISHED

    comfy_install.prepare_base(BASE)
    models = BASE / "models" / "text_encoders"
    demo_checkpoint.make_folder(models / given_checkpoint.DEMO_NAME, given_checkpoint.bundled_tokenizer(host))
    (models / UNFINISHED).unlink(missing_ok=True)
    demo_checkpoint.make_single_file(models / UNFINISHED)
    with (models / UNFINISHED).open("r+b") as file:
        file.truncate(file.seek(0, 2) * 2 // 3)
    for file in (layout.ROOT / "assets" / "demo").iterdir():
        if file.suffix in (".jpg", ".mp4"):
            shutil.copy(file, BASE / "input")


def _shot(page, scene) -> bytes:
    """A screenshot around the scene's nodes. Raises RuntimeError when its run fails."""
    ids = {key: page.add(node.kind, node.box[:2], **node.values) for key, node in scene.nodes.items()}
    page.settle()
    for origin, slot, target, name in scene.links:
        page.link(ids[origin], ids[target], name, slot)
        page.settle(300)
    if scene.run:
        _run(page)
    page.settle()  # pictures arrive and change sizes
    for key, node in scene.nodes.items():
        page.run(PLACE, [ids[key], list(node.box), node.collapsed])
    page.fit(*ids.values(), scale=1.0)
    page.settle()
    path = page.picture(layout.OUTPUT / "help" / "shot.png", *ids.values())
    return path.read_bytes()


def _run(page) -> None:
    page.start_run()
    if errors := page.wait_for_run(LONGEST)["errors"]:
        raise RuntimeError(f"help_pictures: expected a run that succeeds, got {errors}. See output/logs.")
    page.settle(3000)


def reduced(png: bytes) -> bytes:
    """With as many colours as fit into LARGEST bytes."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in COLOURS:
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() < LARGEST:
            break
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
