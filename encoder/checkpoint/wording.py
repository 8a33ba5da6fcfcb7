"""Many tensor names in few words, for messages.

Contract: `in_words(released names)` -> "mlp.down_proj of layers 0 to 49; embed_tokens"; `parts_in_words(names)` ->
"layers 8 to 12, the vision tower"; `spans(numbers)` -> "0 to 3, 7". `printable(text)`: what a terminal would obey
(control characters, changes of direction) as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAYER = re.compile(r"model\.(?:language_model\.)?(?:(visual)\.blocks|layers)\.(\d+)\.(.+)")
_LINEARS = {f"mlp.{n}_proj" for n in ("gate", "up", "down")} | {f"self_attn.{n}_proj" for n in "qkvo"}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MOST = 6  # kinds of tensors that a message spells out


def in_words(names: Iterable[str]) -> str:
    """Names of one kind in different layers become one phrase."""
    layers: dict[tuple[str, str], set[int]] = {}
    phrases: list[str] = []
    for name in names:
        match = _LAYER.match(name)
        if match:
            layers.setdefault((match[1] or "", match[3].removesuffix(".weight")), set()).add(int(match[2]))
        else:
            phrases.append(name.removeprefix("model.").removeprefix("language_model.").removesuffix(".weight"))
    alike: dict[tuple[str, str], list[str]] = {}
    for (tower, kind), numbers in layers.items():
        alike.setdefault((tower, spans(numbers)), []).append(kind)
    return "; ".join(_shortened([*(_phrase(*where, kinds) for where, kinds in alike.items()), *sorted(phrases)]))


def _phrase(tower: str, numbers: str, kinds: list[str]) -> str:
    place = "vision block" if tower else "layer"
    plural = "" if numbers.isdecimal() else "s"
    listed = "all linears" if set(kinds) == _LINEARS else ", ".join(_shortened(sorted(kinds)))
    return f"{listed} of {place}{plural} {numbers}"


def _shortened(words: list[str]) -> list[str]:
    return words if len(words) <= _MOST + 1 else [*words[:_MOST], f"and {len(words) - _MOST} more"]


def parts_in_words(names: Iterable[str]) -> str:
    """Only where the tensors stand: "layers 8 to 12, the vision tower"."""
    layers: set[int] = set()
    others: set[str] = set()
    for name in names:
        match = _LAYER.match(name)
        if "visual." in name:
            others.add("the vision tower")
        elif match:
            layers.add(int(match[2]))
        else:
            others.add(name.removesuffix(".weight").rpartition(".")[2])
    numbers = [f"layer{'s' if len(layers) > 1 else ''} {spans(layers)}"] if layers else []
    return ", ".join([*numbers, *sorted(others)])


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers as runs: "0 to 3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return ", ".join(words if len(words) <= 2 * _MOST else [*words[: 2 * _MOST], "..."])


def has_control(text: str) -> bool:
    """Whether a terminal would obey a part of `text` rather than show it."""
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
