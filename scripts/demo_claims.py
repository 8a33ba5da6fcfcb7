"""The demo's claims, each checked in this run: what was compared, the figure, PASS or FAIL.

Contract: every function returns `Claim`s and asserts nothing; a claim that could not be checked is a FAIL that says
why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import demo_requests
import torch
from demo_requests import AFTER_STOP, REQUESTS, STOPPED, DemoRequest, with_options
from given_checkpoint import Checkpoint
from pack import h3te_module
from safetensors.torch import load_file

FLOAT32_LIMIT = 2e-4  # relative L2 against the official path; measured values are about 1e-6


@dataclass(frozen=True)
class Claim:
    """number: the claim it belongs to; what: one line; figure: what was measured."""

    number: int
    what: str
    passed: bool
    figure: str


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative L2 distance, in float64."""
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm())


def official_claims(checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 1: hidden states against transformers on the same files, in float32; bf16 beside it."""
    from demo_official import official

    tap = h3te_module("encoder").SELECTED_LAYER
    results: dict[tuple[str, torch.dtype], tuple] = {}
    for dtype in (torch.float32, torch.bfloat16):
        path = official(checkpoint, tap, dtype)
        encoder = h3te_module("encoder").load_encoder(checkpoint.path, dtype=dtype, tokenizer=checkpoint.tokenizer)
        for request in REQUESTS:
            say(f"{request.title}: transformers in {str(dtype)[6:]}")
            references = demo_requests.references(request)
            theirs = path.encode(request.prompt, references)
            results[request.name, dtype] = (encoder.encode(request.prompt, references), theirs)
    for request in REQUESTS:
        yield _official_claim(request, results)


def _official_claim(request: DemoRequest, results: dict) -> Claim:
    ours, theirs = results[request.name, torch.float32]
    ours_bf16, theirs_bf16 = results[request.name, torch.bfloat16]
    same_ids = torch.equal(ours.token_ids, theirs.ids)
    what = f"{request.title}: hidden_states[50] equal transformers'"
    if not same_ids:
        return Claim(1, what, False, f"token ids differ: {len(ours.token_ids)} and {len(theirs.ids)}")
    distance = relative(ours.hidden[0], theirs.hidden)
    errors = [relative(hidden.float(), theirs.hidden) for hidden in (ours_bf16.hidden[0], theirs_bf16.hidden)]
    figure = (
        f"{len(theirs.ids)} tokens, float32 relative difference {distance:.1e}; bf16 error to float32: ours "
        f"{errors[0]:.4f}, transformers {errors[1]:.4f}"
    )
    return Claim(1, what, distance <= FLOAT32_LIMIT, figure)


def graph_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 2: what the nodes hand out in the running ComfyUI equals the encoder called directly. Keeps the results."""
    demo_requests.upload_pictures(server)
    encoder = direct_encoder(checkpoint)
    for request in REQUESTS:
        say(f"{request.title}: ComfyUI")
        _, figure = graph_run(server, checkpoint, request, encoder)
        yield Claim(2, f"{request.title}: the node graph equals the encoder called directly", *figure)


def graph_run(server, checkpoint: Checkpoint, request: DemoRequest, encoder) -> tuple[dict, tuple[bool, str]]:
    """Run a request in ComfyUI: (what the nodes said, (whether it equals `encoder`'s result, the figure))."""
    started = time.perf_counter()
    outputs = server.run(with_options(demo_requests.graph(request, checkpoint.value)), timeout=36_000)
    seconds = time.perf_counter() - started
    direct = encoder.encode(request.prompt, demo_requests.references(request))
    facts, graph = json.loads(outputs["probe"]["text"][0]), probed(server, request)
    same = _equal(graph, direct)
    figure = f"{len(direct.token_ids)} tokens, {seconds:.1f} s in the graph, {facts['dtype'][6:]} on {facts['device']}"
    return outputs, (same, f"{figure}; {'bit-equal, tags equal' if same else _difference(graph, direct)}")


def direct_encoder(checkpoint: Checkpoint):
    """The encoder called without ComfyUI, computing where ComfyUI computes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return h3te_module("encoder").load_encoder(checkpoint.path, device=device, tokenizer=checkpoint.tokenizer)


def probed(server, request: DemoRequest) -> dict[str, torch.Tensor]:
    """hidden and tags that the probe wrote for a request."""
    return load_file(server.base / "output" / f"h3te_demo_{request.name}.safetensors")


def _equal(graph: dict[str, torch.Tensor], direct) -> bool:
    hidden = direct.hidden.cpu().to(graph["hidden"].dtype)
    same = graph["hidden"].shape == hidden.shape and torch.equal(graph["hidden"], hidden)
    return same and torch.equal(graph["tags"], direct.token_tags)


def _difference(graph: dict[str, torch.Tensor], direct) -> str:
    if graph["hidden"].shape != direct.hidden.shape:
        return f"shapes {list(graph['hidden'].shape)} and {list(direct.hidden.shape)}"
    return f"relative difference {relative(graph['hidden'], direct.hidden.cpu().float()):.1e}"


def stop_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 4: Stop in the middle of an encode takes effect, and the next prompt is right."""
    say("Stop in the middle")
    with server.events() as events:
        prompt_id = server.queue(with_options(demo_requests.graph(STOPPED, checkpoint.value)))
        at = events.wait_for(lambda kind, data: _encoding(kind, data, prompt_id), timeout=3600)
        pressed = time.perf_counter()
        server.interrupt()
        entry = server.wait(prompt_id, timeout=3600)
    waited = time.perf_counter() - pressed
    kinds = [kind for kind, _ in entry["status"]["messages"]]
    stopped = "execution_interrupted" in kinds and not entry["status"]["completed"]
    figure = f"pressed at step {at['value']:.0f} of {at['max']:.0f}, stopped after {waited:.2f} s"
    yield Claim(4, "Stop in the middle of an encode", stopped, figure)
    server.run(with_options(demo_requests.graph(AFTER_STOP, checkpoint.value)), timeout=36_000)
    direct = direct_encoder(checkpoint).encode(AFTER_STOP.prompt)
    graph = probed(server, AFTER_STOP)
    same = _equal(graph, direct)
    yield Claim(4, "The prompt after Stop is right", same, "bit-equal" if same else _difference(graph, direct))


def _encoding(kind: str, data: dict, prompt_id: str) -> bool:
    return kind == "progress" and data.get("prompt_id") == prompt_id and 2 <= data["value"] < data["max"]
