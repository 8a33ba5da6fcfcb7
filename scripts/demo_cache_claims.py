"""The demo's claims about caches: the same request again, and with one word changed, as the options are by default.

Contract: as demo_claims. The requests are of these claims alone: all others compute every prompt whole, so nothing of
these is kept when they begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import demo_requests
import torch
from comfy_client import PromptFailed, failure
from demo_claims import Claim, probed, relative
from demo_requests import REFERENCES, DemoRequest, with_options
from given_checkpoint import Checkpoint
from pack import h3te_module

LONGER = demo_requests.LENGTH + 17  # frames of the video: no part of what the encoder reads, but ComfyUI runs the node
FIRST = replace(REFERENCES, name="cached")
AGAIN = replace(FIRST, name="cached_again")
CHANGED = replace(FIRST, name="cached_changed", prompt=FIRST.prompt.replace("floats", "drifts"))
WHOLE = replace(CHANGED, name="cached_whole")
REUSED = re.compile(r"cache: prefix (\d+) of (\d+) tokens")
ROUNDING = 1.2  # times the error of a fresh encode to float32: as far as reused prefixes may be from float32


@dataclass(frozen=True)
class Ran:
    """text: what the encode node said; seconds: of the whole graph."""

    hidden: torch.Tensor
    tags: torch.Tensor
    text: str
    seconds: float


def cache_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 8. The pictures have been uploaded, and an encode of them has warmed the weights."""
    say("Caches")
    first = _run(server, FIRST, _graph(checkpoint, FIRST))
    again = _run(server, AGAIN, _graph(checkpoint, AGAIN, length=LONGER))
    yield _hit_claim(first, again)
    changed = _run(server, CHANGED, _graph(checkpoint, CHANGED))
    fresh = _run(server, WHOLE, with_options(_graph(checkpoint, WHOLE)))
    yield _prefix_claim(changed, fresh, _alike(checkpoint))
    say("The changed prompt in float32")
    yield _rounding_claim(changed, fresh, _float32(checkpoint))


def _graph(checkpoint: Checkpoint, request: DemoRequest, **inputs) -> dict:
    """With the options' defaults. inputs: of the encode node, instead of the request's own."""
    graph = demo_requests.graph(request, checkpoint.value)
    graph["encode"]["inputs"].update(inputs)
    return graph


def _run(server, request: DemoRequest, graph: dict) -> Ran:
    entry = server.wait(server.queue(graph), timeout=36_000)
    if not entry["status"]["completed"]:
        raise PromptFailed(failure(entry) or "stopped", entry)
    found, said = probed(server, request), "\n".join(entry["outputs"]["encode"]["text"])
    return Ran(found["hidden"], found["tags"], said, _seconds(entry))


def _seconds(entry: dict) -> float:
    """By ComfyUI's own clock."""
    times = {kind: data["timestamp"] for kind, data in entry["status"]["messages"] if "timestamp" in data}
    return (times["execution_success"] - times["execution_start"]) / 1000


def _hit_claim(first: Ran, again: Ran) -> Claim:
    same = torch.equal(first.hidden, again.hidden) and torch.equal(first.tags, again.tags)
    hit = "cache: miss" in first.text and "cache: hit (RAM)" in again.text and "no weight was read" in again.text
    figure = (
        f"{'hit (RAM)' if hit else 'no hit: ' + again.text[:120]}, {'identical to the bit' if same else 'differs'}; "
        f"{again.seconds:.2f} s, the first time {first.seconds:.2f} s ({again.seconds / first.seconds:.3f})"
    )
    return Claim(8, "The same request again, for a longer video, is not encoded", hit and same, figure)


def _prefix_claim(changed: Ran, fresh: Ran, alike: int) -> Claim:
    """All that stands before the changed word is reused, the pictures too; the fresh encode reuses nothing.

    alike: tokens before the first one that differs."""
    what = "One word of the prompt changed: the pictures and words before it are reused"
    said = REUSED.search(changed.text)
    if said is None or "cache: miss" not in fresh.text:
        return Claim(8, what, False, f"expected a prefix and a miss, got {changed.text[:120]!r}, {fresh.text[:120]!r}")
    reused, tokens = int(said[1]), int(said[2])
    passed = reused == alike < tokens == fresh.hidden.shape[1] and changed.seconds < fresh.seconds
    figure = (
        f"prefix {reused} of {tokens} tokens, {alike} stand before that word; {changed.seconds:.2f} s, computed whole "
        f"{fresh.seconds:.2f} s ({changed.seconds / fresh.seconds:.2f})"
    )
    return Claim(8, what, passed, figure)


def _alike(checkpoint: Checkpoint) -> int:
    """Tokens before the first in which the two prompts differ."""
    tokens, presentation = h3te_module("encoder.tokens"), h3te_module("encoder.presentation")
    tokenizer = tokens.H3Tokenizer.from_folder(checkpoint.tokenizer)
    references = demo_requests.references(FIRST)
    first, changed = (
        tokens.tokenize(presentation.present(request.prompt, references), tokenizer).ids for request in (FIRST, CHANGED)
    )
    least = min(len(first), len(changed))
    return int((first[:least] == changed[:least]).long().cumprod(0).sum())


def _rounding_claim(changed: Ran, fresh: Ran, exact: torch.Tensor) -> Claim:
    """exact [S, D]: the same request in float32, computed whole."""
    ours, whole = (relative(ran.hidden[0], exact) for ran in (changed, fresh))
    figure = (
        f"error to float32 {ours:.4f}, computed whole {whole:.4f} ({ours / whole:.3f}, at most {ROUNDING}); from each "
        f"other {relative(changed.hidden, fresh.hidden):.4f}"
    )
    what = "The changed prompt is within bf16's rounding of the whole computation"
    return Claim(8, what, ours <= ROUNDING * whole, figure)


def _float32(checkpoint: Checkpoint) -> torch.Tensor:
    load = h3te_module("encoder").load_encoder
    encoder = load(checkpoint.path, dtype=torch.float32, tokenizer=checkpoint.tokenizer)
    return encoder.encode(CHANGED.prompt, demo_requests.references(CHANGED)).hidden[0].cpu()
