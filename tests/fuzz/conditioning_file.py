"""Fuzz target: a conditioning file, as Load MiniMax H3 Conditioning reads it (contract: safetensors_header.py).

Needs a ComfyUI: COMFYUI_PATH, or the one of set-up. The digest of a changed file is made true again half of the time,
so that what lies behind it is reached.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from . import json_frames
from .accepted import refusal
from .json_frames import framed, split

ROOT = Path(__file__).resolve().parents[2]
_KEPT = TemporaryDirectory(prefix="h3te-fuzz-")  # until the process ends
_FOLDER = Path(_KEPT.name)
_FILE = _FOLDER / "c.safetensors"


def prepare() -> None:
    from ..comfy_host import import_host

    import_host(Path(os.environ.get("COMFYUI_PATH") or ROOT / ".comfyui" / "ComfyUI"))
    import h3te.nodes.host.conditioning_file
    import h3te.nodes.host.conditioning_list
    import h3te.nodes.host.report_conditioning  # noqa: F401


def seeds() -> dict[str, bytes]:
    import torch
    from h3te.nodes.host.conditioning_file import write
    from h3te.nodes.host.saving import SaveTarget

    hidden = torch.ones(1, 2, 4)
    nested = {"a": (1, 2.5, float("inf"), None), 3: [hidden, True], "t": torch.arange(3), "h3te": {"presentation": "p"}}
    found = {}
    for i, made in enumerate(([[hidden, {}]], [[hidden, nested], [hidden.bfloat16(), {}]])):
        found[f"saved{i}"] = write(SaveTarget(_FOLDER, "seed", i), made).path.read_bytes()
    from ..conditioning_files import conditioning

    return {**found, "whole": write(SaveTarget(_FOLDER, "seed", 9), conditioning(3)).path.read_bytes()}


def mutated(data: bytes, chance: Random) -> bytes:
    changed = _tree_changed(data, chance) if chance.random() < 0.6 else json_frames.mutated(data, chance)
    return _true_digest(changed) if chance.random() < 0.7 else changed


def _tree_changed(data: bytes, chance: Random) -> bytes:
    """The tree, or what else stands in the metadata as JSON, changed within."""
    text, rest = split(data)
    try:
        header = json.loads(text)
        name = chance.choice(("tree", "tree", "tree", "about", "provenance"))
        inner = json_frames.tree_mutated(json.loads(header["__metadata__"][name]), chance)
        header["__metadata__"][name] = json.dumps(inner)
        return framed(json.dumps(header, separators=(",", ":")).encode(), rest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data


def _true_digest(data: bytes) -> bytes:
    text, rest = split(data)
    try:
        header = json.loads(text)
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(set(header) - {"__metadata__"}):
            begin, end = header[name]["data_offsets"]
            digest.update(f"{name}\n".encode() + rest[begin:end])
        header["__metadata__"]["digest"] = digest.hexdigest()
        return framed(json.dumps(header, separators=(",", ":")).encode(), rest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data


def one(data: bytes) -> None:
    from h3te.nodes.host.conditioning_file import read, read_metadata
    from h3te.nodes.host.report_conditioning import described

    _FILE.write_bytes(data)
    metadata_said = refusal(lambda: read_metadata(_FILE))
    loaded = []
    said = refusal(lambda: loaded.append(read(_FILE)))
    if metadata_said and metadata_said != said:
        raise AssertionError(f"expected the same refusal, got {metadata_said!r} and {said!r}")
    for each in loaded:
        lines = described(each.metadata, each.nbytes)
        if not all(isinstance(line, str) and len(line) < 2000 for line in lines):
            raise AssertionError("expected short lines on the node")
