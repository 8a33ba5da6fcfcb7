"""What the nodes say of a conditioning file, from its metadata alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...encoder.checkpoint.wording import printable

WORDS = 60  # characters of a prompt that a node shows


def described(metadata: Mapping[str, str], nbytes: int | None = None) -> list[str]:
    """Lines for a node: tokens and size, what the file holds, the prompt's first words, encoder, time. Values of the
    file that are not as expected are passed over."""
    facts, origin = _object(metadata.get("about")), _object(metadata.get("provenance"))
    size = "" if nbytes is None else f", {file_size(nbytes)}"
    tokens = facts.get("tokens")
    counted = isinstance(tokens, list) and tokens and all(_is_count(n) for n in tokens)
    lines = [f"{' and '.join(map(str, tokens[:4])) if counted else '?'} tokens{size}"]
    lines += [_latents(facts)] if facts else []
    prompt = origin.get("prompt") or metadata.get("presentation")
    lines += [f"prompt: {shortened(prompt)}"] if isinstance(prompt, str) and prompt else []
    told = (("encoder", "encoded by"), ("dtype", "computed in"), ("pack", "pack version"))
    lines += [f"{words} {shortened(origin[key])}" for key, words in told if isinstance(origin.get(key), str)]
    saved = facts.get("saved")
    return [*lines, *([f"saved {shortened(saved[:40])}"] if isinstance(saved, str) else [])]


def _is_count(number: object) -> bool:
    """One that a file can be about: others may have thousands of digits."""
    return type(number) is int and 0 <= number < 1 << 40


def _latents(facts: Mapping[str, Any]) -> str:
    refs, keyframes = facts.get("references"), facts.get("keyframes")
    held = [f"{len(refs)} reference latents"] if isinstance(refs, list) and refs else []
    held += [f"{keyframes} keyframes"] if _is_count(keyframes) and keyframes else []
    without = [] if facts.get("tags") else ["no token tags: not MiniMax H3's conditioning"]
    return "; ".join([*([", ".join(held)] if held else ["no reference or keyframe latents"]), *without])


def file_size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.2f} GB"


def shortened(text: str) -> str:
    """On one line, the first words of a long text; what a terminal would obey as escapes."""
    line = printable(" ".join(text[: 100 * WORDS].split()))
    return line if len(line) <= WORDS else f"{line[:WORDS]}..."


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
