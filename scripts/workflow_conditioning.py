"""What our encode nodes and the host's own H3 nodes emit for the bundled workflows, compared key by key.

Contract: `measure(server, graphs)` runs the encode parts on a live server and returns what it described, for our nodes
and, where the server has H3 nodes of its own, for these; `differences(ours, hosts)` names every key, shape, type,
number and integer content that differs. The host's answers are kept in tests/workflow_facts/conditioning.json.
"""

from __future__ import annotations

import json
import math
import struct
import wave
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import layout
import workflow_encode
from workflow_definitions import FACTS

FILE = FACTS / "conditioning.json"
NEWER = frozenset({"picture_index"})  # on image blocks: newer hosts put it, and so do we
OWN = frozenset({"h3te"})  # what it came from, for files that are saved of it: no sampler reads it
_ASSETS = layout.ROOT / "assets" / "demo"


def kept() -> dict[str, Any]:
    """The recorded answers of the host's nodes: {"comfyui", "date", "workflows": {name: description}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def save(found: Mapping[str, Any], comfyui: str, date: str) -> None:
    text = json.dumps({"comfyui": comfyui, "date": date, "workflows": found}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8", newline="\n")


def measure(server, graph: workflow_encode.API, types: set[str]) -> tuple[dict, dict | None]:
    """Ours, and the host's own (None where it has no H3 nodes)."""
    found = _described(server, workflow_encode.ours(graph, types))
    if not types.issuperset(workflow_encode.HOST_NODES):
        return found, None
    return found, _described(server, workflow_encode.hosts(graph, types))


def _described(server, graph: workflow_encode.API) -> dict[str, Any]:
    return json.loads(server.run(graph, timeout=300)["shapes"]["text"][0])


def upload(server) -> None:
    """The demo's pictures (as PNG: releases decode JPEG differently), its clip, and two seconds of a tone."""
    from PIL import Image

    for name in workflow_encode.PICTURES:
        file = layout.TEMP / name
        Image.open((_ASSETS / name).with_suffix(".jpg")).convert("RGB").save(file)
        server.upload_image(file)
        file.unlink()
    server.upload_image(_ASSETS / workflow_encode.VIDEO)
    server.upload_image(_tone(layout.TEMP / workflow_encode.VOICE))


def _tone(file: Path, seconds: int = 2, rate: int = 32000) -> Path:
    with wave.open(str(file), "wb") as sound:
        sound.setparams((2, 2, rate, 0, "NONE", ""))
        for i in range(seconds * rate):
            level = int(9000 * math.sin(2 * math.pi * 220 * i / rate))
            sound.writeframesraw(struct.pack("<hh", level, level))
    return file


def differences(ours: Any, hosts: Any, where: str = "") -> Iterator[str]:
    """Each as "place: ours, theirs". The order of keyframes is no meaning: they are compared by frame."""
    ours, hosts = _by_frame(ours), _by_frame(hosts)
    if isinstance(ours, dict) and isinstance(hosts, dict):
        for name in sorted({*ours, *hosts}):
            if name in NEWER | OWN and name not in hosts:
                continue
            if (name in ours) != (name in hosts):
                yield f"{where}.{name}: only {'ours' if name in ours else 'the host'} has it"
            else:
                yield from differences(ours[name], hosts[name], f"{where}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(hosts, list) and not (_is_plain(ours) and _is_plain(hosts)):
        if len(ours) != len(hosts):
            yield f"{where}: {len(ours)} ours, {len(hosts)} of the host"
        for i, (one, other) in enumerate(zip(ours, hosts, strict=False)):
            yield from differences(one, other, f"{where}[{i}]")
    elif ours != hosts:
        yield f"{where}: ours {ours!r}, the host {hosts!r}"


def _by_frame(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "resolved_frame_index" in value[0]:
        return sorted(value, key=lambda block: block["resolved_frame_index"])
    return value


def count(value: Any) -> int:
    """How many single facts a description holds."""
    if isinstance(value, dict):
        return sum(map(count, value.values()))
    return sum(map(count, value)) if isinstance(value, list) and value and not _is_plain(value) else 1


def _is_plain(value: list) -> bool:
    return all(not isinstance(each, (dict, list)) for each in value)
