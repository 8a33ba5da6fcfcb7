"""One rename table: every layout's tensor names -> the released names.

Contract: `released_name(name)`; layouts are told apart by prefix. Source: the official index (`model.language_model.*`,
`model.visual.*`, `lm_head.weight`), ComfyUI's single files (`model.*`, `visual.*`) and files without any prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..config import MOST_BLOCKS, MOST_LAYERS, MOST_MERGERS
from .header import LONGEST_NAME
from .wording import has_control

LAYOUTS = ("official", "comfyui", "bare")
_RENAMES = {
    "official": (("model.language_model.", "model.language_model."), ("model.visual.", "model.visual.")),
    "comfyui": (("visual.", "model.visual."), ("model.visual.", "model.visual."), ("model.", "model.language_model.")),
    "bare": (
        ("visual.", "model.visual."),
        ("layers.", "model.language_model.layers."),
        ("embed_tokens.", "model.language_model.embed_tokens."),
        ("norm.", "model.language_model.norm."),
    ),
}
_NUMBERED = re.compile(r"(?:^|\.)(layers|blocks|deepstack_merger_list)\.(\d+)")
_MOST = {"layers": MOST_LAYERS, "blocks": MOST_BLOCKS, "deepstack_merger_list": MOST_MERGERS}


def find_layout(names: Iterable[str]) -> str:
    """The layout of these tensor names. Raises ValueError for none or for two at once, and for names that no model has:
    whoever counts layers or writes messages may rely on that."""
    names = list(names)
    _check_names(names)
    found = []
    if any(name.startswith("model.language_model.") for name in names):
        found.append("official")
    if any(name.startswith(("model.layers.", "model.embed_tokens.")) for name in names):
        found.append("comfyui")
    if any(name.startswith(("layers.", "embed_tokens.")) for name in names):
        found.append("bare")
    if len(found) != 1:
        got = " and ".join(found) if found else f"names such as {', '.join(sorted(names)[:3]) or 'none'}"
        raise ValueError(
            f"checkpoint: expected tensor names of one layout ({', '.join(LAYOUTS)}), got {got}. "
            "Use the official text_encoder folder or a qwen3vl_32b_minimax_h3 file."
        )
    return found[0]


def released_name(name: str, layout: str) -> str:
    """`name` as the released checkpoint spells it; names without a rule come back unchanged."""
    for prefix, released in _RENAMES[layout]:
        if name.startswith(prefix):
            return released + name[len(prefix) :]
    return name


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if has_control(name) or len(name) > LONGEST_NAME:
            raise ValueError(
                f"checkpoint: expected printable tensor names of at most {LONGEST_NAME} characters, got "
                f"{name[:100]!r}. The file is damaged: download it again."
            )
        for kind, number in _NUMBERED.findall(name):
            if len(number) > 9 or int(number) >= _MOST[kind]:
                raise ValueError(
                    f"checkpoint: expected at most {MOST_LAYERS:,} layers, {MOST_BLOCKS:,} vision blocks and "
                    f"{MOST_MERGERS} DeepStack mergers, got a tensor {name}. The file is damaged or another "
                    "model's: download it again."
                )
