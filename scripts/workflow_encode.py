"""The encode part of a bundled workflow, cut out of its API copy, and the same request for the host's own H3 nodes.

Contract: `ours(graph, types)` and `hosts(graph, types)` are API graphs that end in a node which describes CONDITIONING
and LATENT. The demo checkpoint, stand-in VAEs and demo pictures take the place of files; a node of a type that the host
lacks (`types`: those it has) is replaced by its value. Standard library only.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

API = dict[str, dict[str, Any]]
CHECKPOINT = "h3te-demo/"
PICTURES = ("rubber_duck.png", "lighthouse.png", "harbour_day.png")
VIDEO, VOICE = "toy_train.mp4", "h3te_voice.wav"
FPS = 24
ENCODERS = ("H3TEEncodeReferences", "H3TEEncodeKeyframes")
HOST_NODES = ("MiniMaxH3ReferenceToVideo", "MiniMaxH3ImageToVideo", "MiniMaxH3AddGuide", "GetVideoComponents")
_PRIMITIVES = ("PrimitiveFloat", "PrimitiveInt", "PrimitiveBoolean", "PrimitiveStringMultiline")
_RATIOS = {"16:9 (Widescreen)": (16, 9)}


def encoding(graphs: Mapping[str, API]) -> dict[str, API]:
    """Those that have an encode node; the others load what one of them saved."""
    kinds = {name: {entry["class_type"] for entry in graph.values()} for name, graph in graphs.items()}
    return {name: graph for name, graph in graphs.items() if kinds[name] & set(ENCODERS)}


def encoder_of(graph: API) -> str:
    """The id of the encode node."""
    (found,) = [node for node, entry in graph.items() if entry["class_type"] in ENCODERS]
    return found


def ours(graph: API, types: set[str]) -> API:
    node = encoder_of(graph)
    part = {name: copy.deepcopy(graph[name]) for name in _upstream(graph, node)}
    return _described(_replaced(part, types), [node, 0], [node, 1])


def hosts(graph: API, types: set[str]) -> API:
    """The same pictures, sizes and prompt through MiniMaxH3ReferenceToVideo, or ImageToVideo and AddGuide."""
    node = encoder_of(graph)
    part = {name: copy.deepcopy(graph[name]) for name in _upstream(graph, node)}
    make = _host_references if part[node]["class_type"] == ENCODERS[0] else _host_keyframes
    positive, latent = make(part, part.pop(node)["inputs"])
    part = {name: entry for name, entry in part.items() if not entry["class_type"].startswith(("H3TER", "H3TEK"))}
    return _described(_replaced(part, types), positive, latent)


def _upstream(graph: API, node: str) -> Iterator[str]:
    seen, todo = set(), [node]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [value[0] for value in graph[name]["inputs"].values() if isinstance(value, list)]
    return (name for name in graph if name in seen)


def _replaced(part: API, types: set[str]) -> API:
    """Files exchanged, and what the host lacks turned into constants."""
    constants = {name for name, entry in part.items() if entry["class_type"] not in types | {"VAELoader"}}
    values = {name: [_value(part, name, slot) for slot in range(2)] for name in constants}
    kept = {name: entry for name, entry in part.items() if name not in constants}
    pictures = iter(PICTURES)
    for entry in kept.values():
        for name, value in entry["inputs"].items():
            if isinstance(value, list) and value[0] in constants:
                entry["inputs"][name] = values[value[0]][value[1]]
        _exchange(entry, pictures)
    return kept


def _exchange(entry: dict[str, Any], pictures: Iterator[str]) -> None:
    kind, inputs = entry["class_type"], entry["inputs"]
    if kind == "VAELoader":
        entry["class_type"], entry["inputs"] = (
            "H3TEStandInVAE",
            {"kind": "audio" if "audio" in inputs["vae_name"] else "video"},
        )
    elif kind == "H3TELoadTextEncoder":
        inputs["text_encoder"] = CHECKPOINT
    elif kind == "LoadImage":
        inputs["image"] = next(pictures)
    elif kind == "LoadVideo":
        inputs["file"] = VIDEO
    elif kind == "LoadAudio":
        inputs["audio"] = VOICE


def _value(part: API, node: str, slot: int) -> Any:
    """What a small core node gives, worked out here. Raises ValueError for one that is not known."""
    entry = part[node]
    inputs = {
        name: _value(part, *value) if isinstance(value, list) else value for name, value in entry["inputs"].items()
    }
    if entry["class_type"] in _PRIMITIVES:
        return inputs["value"]
    if entry["class_type"] == "ResolutionSelector":
        return resolution(inputs["aspect_ratio"], inputs["megapixels"], inputs["multiple"])[slot]
    if entry["class_type"] == "ComfyMathExpression":
        return frames(inputs["values.a"])
    raise ValueError(
        f"{entry['class_type']} ({node}): expected a node whose value is known without a host, got this one. Add it to "
        "scripts/workflow_encode.py."
    )


def resolution(aspect: str, megapixels: float, multiple: int) -> tuple[int, int]:
    """Sides of that many times 1024 x 1024 pixels, to the nearest multiple."""
    width, height = _RATIOS[aspect]
    scale = math.sqrt(megapixels * 1024 * 1024 / (width * height))
    return round(width * scale / multiple) * multiple, round(height * scale / multiple) * multiple


def frames(seconds: float) -> int:
    """The workflows' expression: up to the grid of 17k + 5."""
    return math.ceil((seconds * FPS - 5) / 17) * 17 + 5


def _described(part: API, positive: list, latent: list) -> API:
    inputs = {"conditioning": positive, "latent": latent}
    return {**part, "shapes": {"class_type": "H3TEConditioningShapes", "inputs": inputs}}


# the host's own nodes


def _host_references(part: API, inputs: dict[str, Any]) -> tuple[list, list]:
    taken = ("clip", "vae", "audio_vae", "prompt", "width", "height", "length", "ref_image_size")
    host = {name: inputs[name] for name in taken}
    host |= {name: value for name, value in inputs.items() if name.startswith("ref_") and "." in name}
    counts = {"ref_images.ref_image_": 0, "ref_videos.ref_video_": 0, "ref_audios.ref_audio_": 0}
    for item in _chain(part, inputs.get("references"), "references"):
        prefix, value = _host_reference(part, item)
        host[f"{prefix}{counts[prefix]}"] = value
        counts[prefix] += 1
    part["host"] = {"class_type": "MiniMaxH3ReferenceToVideo", "inputs": host}
    return ["host", 0], ["host", 1]


def _host_reference(part: API, item: dict[str, Any]) -> tuple[str, list]:
    if item["class_type"] == "H3TEReferenceImage":
        return "ref_images.ref_image_", item["inputs"]["image"]
    if item["class_type"] == "H3TEReferenceAudio":
        return "ref_audios.ref_audio_", item["inputs"]["audio"]
    part["components"] = {"class_type": "GetVideoComponents", "inputs": {"video": item["inputs"]["video"]}}
    return "ref_videos.ref_video_", ["components", 0]


def _host_keyframes(part: API, inputs: dict[str, Any]) -> tuple[list, list]:
    host = {name: inputs[name] for name in ("clip", "vae", "prompt", "width", "height", "length")}
    host |= {name: inputs[name] for name in ("first_frame", "last_frame") if name in inputs}
    guides = []
    for item in _chain(part, inputs.get("keyframes"), "keyframes"):
        place, shown = _frame(item["inputs"]), item["inputs"]["show_to_encoder"]
        if shown and place in (0, -1):
            host["last_frame" if place else "first_frame"] = item["inputs"]["image"]
        else:
            guides.append((place, item["inputs"]["image"]))
    part["host"] = {"class_type": "MiniMaxH3ImageToVideo", "inputs": host}
    positive = ["host", 0]
    for i, (place, image) in enumerate(guides):
        guide = {"positive": positive, "latent": ["host", 1], "vae": inputs["vae"], "image": image, "frame_idx": place}
        part[f"guide_{i}"] = {"class_type": "MiniMaxH3AddGuide", "inputs": guide}
        positive = [f"guide_{i}", 0]
    return positive, ["host", 1]


def _frame(inputs: dict[str, Any]) -> int:
    return round(inputs["second"] * FPS) if inputs["unit"] == "second" else inputs["frame"]


def _chain(part: API, last: list | None, socket: str) -> list[dict[str, Any]]:
    """The chain nodes in order."""
    found = []
    while last:
        found.append(part[last[0]])
        last = found[-1]["inputs"].get(socket)
    return found[::-1]
