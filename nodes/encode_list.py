"""What both encode nodes do: prompts of a list in one pass, latents of what they share made once, the node's text.

Contract: `encode_list(inputs, ...)` takes ComfyUI's lists of every input and gives lists, one value a prompt; see
prompt_lists.py. A node brings two functions of one row of inputs: `request`, and `values`, which go into CONDITIONING.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import prompt_lists
from .host import report
from .host.any_clip import Ask, Encoded, encode_all
from .host.conditioning import empty_latent, with_values
from .host.conditioning_file import KEY
from .host.images import log_once
from .host.references import Target

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Request:
    """What several prompts share: the target, the pictures and sounds made ready, how a CLIP is asked (the keyword of
    `CLIP.tokenize`), and what the node says of them."""

    target: Target
    prepared: list
    asked: Mapping[str, Any]
    alpha: list[str]
    warnings: list[str]
    facts: list[str]


@dataclass(frozen=True, eq=False)
class EncodedList:
    positive: list[list]
    latents: list[dict[str, Any]]
    presentations: list[str]
    targets: list[Target]
    ui: dict


def encode_list(
    inputs: Row, node: str, hidden: Any, request: Callable[[Row], Request], values: Callable[[Row, Request], dict]
) -> EncodedList:
    """hidden: the node's own `cls.hidden`. `request` and `values` are called once for prompts that share all but the
    prompt and the CLIP; `values` after the encode, so that a VAE does not take the encoder's place before it ran."""
    rows = prompt_lists.rows(inputs, node)
    shared = [name for name in inputs if name not in ("clip", "prompt")]
    request_of = prompt_lists.once_each(request, *shared)
    requests = []
    for number, row in enumerate(rows):
        with prompt_lists.told_which(number, len(rows)):
            requests.append(request_of(row))
    log_once(node, (line for each in requests for line in each.alpha))
    node_id = hidden.unique_id if hidden else None
    _show_before(requests, node_id)
    asks = [Ask(row["clip"], row["prompt"], each.asked) for row, each in zip(rows, requests, strict=True)]
    done = encode_all(asks, node)
    values_of = prompt_lists.once_each(lambda row: values(row, request_of(row)), *shared)
    positive = [
        with_values(each.conditioning, {**values_of(row), KEY: dict(each.facts)} if each.facts else values_of(row))
        for row, each in zip(rows, done, strict=True)
    ]
    targets = [each.target for each in requests]
    latents = [empty_latent(target) for target in targets]
    presentations = [each.presentation for each in done]
    return EncodedList(positive, latents, presentations, targets, _show(requests, done, node_id))


def _show_before(requests: list[Request], node_id: str | None) -> None:
    """Sizes and what they cost, in time to press Stop."""
    if known := report.of_list([each.facts for each in requests], [each.warnings for each in requests]):
        report.show(node_id, known)


def _show(requests: list[Request], done: list[Encoded], node_id: str | None) -> dict:
    """Warnings first: a node shows two lines."""
    warned = [[*r.warnings, *d.notes] for r, d in zip(requests, done, strict=True)]
    said = [[d.summary, *r.facts, *d.details] for r, d in zip(requests, done, strict=True)]
    return report.show(node_id, report.of_list(said, warned))
