"""The unpacked zip in a ComfyUI that has nothing else: all nodes, the page's files, an encode.

Contract: `problems(pack, base, host)` starts that ComfyUI in `base`, whose custom_nodes hold the pack's folder, and
returns what is wrong as sentences.
"""

from __future__ import annotations

import json
from pathlib import Path

import comfy_install
import demo_checkpoint
import given_checkpoint
import layout

KINDS = (
    "H3TECheckpointDoctor", "H3TEClearCaches", "H3TEEncodeKeyframes", "H3TEEncodeReferences", "H3TEEncoderOptions",
    "H3TEKeyframe", "H3TELoadConditioning", "H3TELoadTextEncoder", "H3TEReferenceAudio", "H3TEReferenceImage",
    "H3TEReferenceVideo", "H3TESaveConditioning", "H3TEShowPresentation",
)  # fmt: skip
PROMPT = "A lighthouse at dusk, seen from the packed node pack."


def problems(pack: Path, base: Path, host: Path) -> list[str]:
    from comfy_server import ComfyServer

    comfy_install.prepare_base(base, None)
    demo = base / "models" / "text_encoders" / given_checkpoint.DEMO_NAME
    demo_checkpoint.make_folder(demo, given_checkpoint.bundled_tokenizer(host))
    with ComfyServer(host, base=base, pack=None, log=layout.LOGS / "package.log") as server:
        found = _nodes(server) + _page(server, pack.name)
        return found or _encode(server)


def _nodes(server) -> list[str]:
    lacking = sorted(set(KINDS) - set(server.object_info()))
    return [f"nodes that the unpacked pack lacks: {lacking}; see {server.log_path}"] if lacking else []


def _page(server, name: str) -> list[str]:
    """The script, a help page with its picture, Chinese names."""
    script = f"/extensions/{name}/h3te.js"
    found = [] if script in server.get("/extensions") else [f"ComfyUI does not list {script}"]
    for file in ("h3te.js", f"docs/{KINDS[3]}.md", f"docs/{KINDS[3]}/zh.md", f"docs/{KINDS[3]}.png"):
        found += [] if server.request(f"/extensions/{name}/{file}") else [f"/extensions/{name}/{file} is empty"]
    known = server.get("/i18n").get("zh", {}).get("nodeDefs", {})
    return found + [f"no Chinese name of {kind}" for kind in KINDS if kind not in known]


def _encode(server) -> list[str]:
    graph = {
        "loader": _node("H3TELoadTextEncoder", text_encoder=f"{given_checkpoint.DEMO_NAME}/", device="auto"),
        "encode": _node("H3TEEncodeKeyframes", clip=["loader", 0], prompt=PROMPT, width=864, height=480, length=124),
        "shown": _node("PreviewAny", source=["encode", 2]),
    }
    outputs = server.run(graph, timeout=180)
    said = json.dumps(outputs, ensure_ascii=False)
    return [
        f"expected {text!r} after an encode, got {said[:500]}" for text in (PROMPT, "tokens in all") if text not in said
    ]


def _node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}
