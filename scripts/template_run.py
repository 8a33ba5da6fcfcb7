"""Runs the encode part of a workflow in a live ComfyUI, with stand-ins for VAEs, pictures, videos and sounds.

Contract: `run(server, name, workflow, definitions)` -> `Ran`. Needs the test-only packs of scripts/host_nodes and a
text encoder under each name that the workflow asks for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import demo_requests
import layout
import template_prompt
from comfy_client import PromptFailed, ValidationError
from workflow_definitions import Definitions


@dataclass(frozen=True)
class Ran:
    """`done` of `there` encode nodes ran; `states`: a digest of all hidden states and tags, None when none came."""

    there: int
    done: int = 0
    states: str | None = None
    faults: list[str] = field(default_factory=list)


def run(server, name: str, workflow: Mapping[str, Any], definitions: Definitions) -> Ran:
    part = template_prompt.encode_part(workflow, definitions)
    prompt = template_prompt.with_stand_ins(part, name)
    used = sum(node["class_type"] in template_prompt.ENCODERS for node in prompt.values())
    if used < part.encoders or not part.ends:
        return Ran(part.encoders, faults=[f"{used} of {part.encoders} encode nodes lead to a guider"])
    _upload(server, template_prompt.files(prompt))
    try:
        outputs = server.run(prompt, timeout=300)
    except (ValidationError, PromptFailed, TimeoutError) as error:
        return Ran(part.encoders, faults=[str(error)])
    keys = [json.loads(outputs[f"probe_{i}"]["text"][0])["keys"] for i in range(len(part.ends))]
    faults = [
        f"conditioning without minimax_token_tags: {found}" for found in keys if "minimax_token_tags" not in found
    ]
    states = hashlib.sha256(b"".join(server.view(f"{name}_{i}.safetensors") for i in range(len(part.ends))))
    return Ran(part.encoders, used, states.hexdigest(), faults)


def _upload(server, files: Mapping[str, str]) -> None:
    """Pictures, videos and sounds of this project under the names that the workflow loads."""
    from PIL import Image

    pictures = sorted(demo_requests.PICTURES.glob("*.jpg"))
    for i, (name, kind) in enumerate(sorted(files.items())):
        if kind != "LoadImage":
            server.upload_image(demo_requests.PICTURES / "toy_train.mp4", name)
            continue
        png = layout.TEMP / "template.png"
        Image.open(pictures[i % len(pictures)]).convert("RGB").save(png)
        server.upload_image(png, name)
        png.unlink()
