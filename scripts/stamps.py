"""Remembers which set-up step was done with which list, so that the second run takes a moment. Standard library only.

A stamp is a small JSON file beside what the step made: deleting that folder forgets the step.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

NAME = ".set-up.json"


def fingerprint(*parts: object) -> str:
    """A short hash of files (by content) and values (by text)."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def environment_fingerprint(folder: Path) -> str:
    """What a virtual environment depends on: the interpreter's version, the system, and where it lies."""
    return f"{sys.version_info.major}.{sys.version_info.minor}-{sys.platform} {folder}"


def read(folder: Path) -> dict[str, str]:
    """Step -> fingerprint as last written in a folder; empty when missing or damaged."""
    try:
        stamps = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def is_done(folder: Path, step: str, value: str) -> bool:
    """Whether the step was completed in that folder with that fingerprint."""
    return read(folder).get(step) == value


def write(folder: Path, step: str, value: str) -> None:
    """Records a completed step; the file is replaced whole."""
    stamps = {**read(folder), step: value}
    partial = folder / f"{NAME}.partial"
    partial.write_text(json.dumps(stamps, indent=1), encoding="utf-8")
    partial.replace(folder / NAME)
