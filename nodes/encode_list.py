"""What both encode nodes do: prompts of a list in one pass, latents of what they share made once, the node's text.

Contract: `encode_list(inputs, ...)` takes ComfyUI's lists of every input and gives lists, one value a prompt; see
prompt_lists.py. A node brings two functions of one row of inputs: `request`, and `values`, which go into CONDITIONING.
A row with `preview_only` is read from sizes alone: it is not encoded, and what follows on its conditioning and latent
is blocked. Pictures of presentations are made for the first MOST_PICTURES prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import prompt_lists
from .encode_sockets import MOST_PICTURES
from .host import report
from .host.any_clip import HOSTS_RULE, Ask, Encoded, encode_all
from .host.blocking import BLOCKED
from .host.conditioning import empty_latent, with_values
from .host.conditioning_file import KEY
from .host.images import log_once
from .host.known_pictures import known, remember
from .host.pictures import pictures_of, shown_on_node
from .host.preview import laid_out, preview_all
from .host.references import Target
from .host.shown import HOSTS_CACHE
from .requests import Request, Row
from .sockets import checked_switch


@dataclass(frozen=True, eq=False)
class EncodedList:
    positive: list[Any]
    latents: list[Any]
    presentations: list[str]
    pictures: list[Any]
    targets: list[Target]
    ui: dict


def encode_list(
    inputs: Row, node: str, hidden: Any, request: Callable[[Row, bool], Request], values: Callable[[Row, Request], dict]
) -> EncodedList:
    """hidden: the node's own `cls.hidden`. `request` (its second argument: for a preview) and `values` are called once
    for prompts that share all but the prompt and the CLIP; `values` after the encode, so that a VAE does not take the
    encoder's place before it ran."""
    rows = prompt_lists.rows(inputs, node)
    shared = [name for name in inputs if name not in ("clip", "prompt")]
    request_of = prompt_lists.once_each(lambda row: request(row, is_preview(row, node)), *shared)
    requests = requests_of(rows, request_of)
    log_once(node, (line for each in requests for line in each.alpha))
    node_id = hidden.unique_id if hidden else None
    _show_before(requests, node_id)
    previews = [is_preview(row, node) for row in rows]
    asks = [asked(row, each) for row, each in zip(rows, requests, strict=True)]
    done = _encode_or_preview(asks, previews, node)
    for each, made in zip(requests, done, strict=True):
        if made.conditioning is not None:
            remember(each.prepared, made.shown.presentation)
    values_of = prompt_lists.once_each(lambda row: values(row, request_of(row)), *shared)
    positive = [_positive(each, lambda row=row: values_of(row)) for row, each in zip(rows, done, strict=True)]
    latents = [_latent(r.target, e) for r, e in zip(requests, done, strict=True)]
    pictures = pictures_of(node, requests, done, MOST_PICTURES)
    ui = show(requests, done, node_id) | (shown_on_node(pictures) if any(previews) else {})
    presentations = [each.presentation for each in done]
    return EncodedList(positive, latents, presentations, pictures, [each.target for each in requests], ui)


def asked(row: Row, request: Request) -> Ask:
    return Ask(row.get("clip"), row["prompt"], request.asked, known(request.prepared))


def is_preview(row: Row, node: str) -> bool:
    return checked_switch(row.get("preview_only", False), f"{node}, preview_only")


def requests_of(rows: Sequence[Row], request_of: Callable[[Row], Request]) -> list[Request]:
    """An error says of which prompt it is."""
    requests = []
    for number, row in enumerate(rows):
        with prompt_lists.told_which(number, len(rows)):
            requests.append(request_of(row))
    return requests


def _encode_or_preview(asks: Sequence[Ask], previews: Sequence[bool], node: str) -> list[Encoded]:
    """Each of one kind together, in the order of the asks."""
    made: dict[int, Encoded] = {}
    for work, wanted in ((preview_all, True), (encode_all, False)):
        numbers = [i for i, preview in enumerate(previews) if preview is wanted]
        made |= zip(numbers, work([asks[i] for i in numbers], node), strict=True)
    return [_with_shown(made[i], ask) for i, ask in enumerate(asks)]


def _with_shown(done: Encoded, ask: Ask) -> Encoded:
    """ComfyUI's own text encoder does not say what it read."""
    if done.shown is not None:
        return done
    return replace(done, shown=laid_out(ask, cache=HOSTS_CACHE, seconds=done.seconds, remark=HOSTS_RULE))


def _positive(done: Encoded, values: Callable[[], dict]) -> Any:
    if done.conditioning is None:
        return BLOCKED
    return with_values(done.conditioning, {**values(), KEY: dict(done.facts)} if done.facts else values())


def _latent(target: Target, done: Encoded) -> Any:
    return BLOCKED if done.conditioning is None else empty_latent(target)


def _show_before(requests: list[Request], node_id: str | None) -> None:
    """Sizes and what they cost, in time to press Stop."""
    if known := report.of_list([each.facts for each in requests], [each.warnings for each in requests]):
        report.show(node_id, known)


def show(requests: list[Request], done: list[Encoded], node_id: str | None) -> dict:
    """Warnings first: a node shows two lines."""
    warned = [[*r.warnings, *d.notes] for r, d in zip(requests, done, strict=True)]
    said = [[d.summary, *r.facts, *d.details] for r, d in zip(requests, done, strict=True)]
    lines = report.of_list(said, warned)
    more = [f"pictures of the first {MOST_PICTURES} prompts"] if len(done) > MOST_PICTURES else []
    return report.show(node_id, [*lines, *more])
