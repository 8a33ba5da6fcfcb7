"""The demo's claims about chains and lists: references in any order, keyframes anywhere, several prompts in one pass.

Contract: as demo_claims; every result of the running ComfyUI is compared with the encoder called directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import demo_requests
import torch
from demo_claims import Claim, direct_encoder, probed
from demo_requests import KEYFRAMES, REFERENCES, DemoRequest, node, with_options
from given_checkpoint import Checkpoint

SECOND = 2.0  # of the timed picture
MIDDLE = 2.5  # of the keyframe in the middle, in seconds
SMALL = {"width": 448, "height": 256}
CHAINED = replace(REFERENCES, name="chained", **SMALL)
MIDWAY = replace(KEYFRAMES, name="midway", **SMALL)
LISTED = replace(REFERENCES, name="listed", **SMALL)
PROMPTS = (
    LISTED.prompt,
    "<Picture 1> sinks behind <Picture 2>; foam and silence.",
    "Night. The lamp of <Picture 2> finds <Picture 1> among the waves.",
)


def chain_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 7. The pictures have been uploaded."""
    say("Chains and lists")
    encoder = direct_encoder(checkpoint)
    yield _order_claim(server, checkpoint, encoder)
    yield _keyframe_claim(server, checkpoint, encoder)
    yield from _list_claims(server, checkpoint, encoder)


def _order_claim(server, checkpoint: Checkpoint, encoder) -> Claim:
    """The second picture first, then a timed one."""
    graph = with_options(demo_requests.graph(CHAINED, checkpoint.value))
    graph["second"] = _picture("picture_1", timed=False)
    graph["first"] = _picture("picture_0", timed=True, references=["second", 0])
    inputs = graph["encode"]["inputs"]
    inputs["references"] = ["first", 0]
    for socket in [name for name in inputs if name.startswith("ref_images.")]:
        del inputs[socket]
    server.run(graph, timeout=36_000)
    duck, lighthouse = demo_requests.references(CHAINED)
    timed = replace(duck, timestamp=SECOND)
    what = "Reference nodes in an order of the user's own, one with a second"
    return _equal_claim(what, server, CHAINED, encoder.encode(CHAINED.prompt, [lighthouse, timed]))


def _picture(source: str, timed: bool, **chain) -> dict:
    return node("H3TEReferenceImage", image=[source, 0], vision_only=False, timed=timed, second=SECOND, **chain)


def _keyframe_claim(server, checkpoint: Checkpoint, encoder) -> Claim:
    """The last picture in the middle of the video."""
    graph = with_options(demo_requests.graph(MIDWAY, checkpoint.value))
    how = {"unit": "second", "frame": 0, "second": MIDDLE, "fit": "released", "pad_colour": "black"}
    last = graph["encode"]["inputs"].pop("last_frame")
    graph["middle"] = node("H3TEKeyframe", image=last, **how, show_to_encoder=True)
    graph["encode"]["inputs"]["keyframes"] = ["middle", 0]
    server.run(graph, timeout=36_000)
    direct = encoder.encode(MIDWAY.prompt, demo_requests.references(MIDWAY))
    return _equal_claim(f"A keyframe at {MIDDLE} s, on a chain", server, MIDWAY, direct)


def _equal_claim(what: str, server, request: DemoRequest, direct) -> Claim:
    same = _equal(probed(server, request), direct)
    figure = f"{len(direct.token_ids)} tokens, {'bit-equal' if same else 'differs from the encoder called directly'}"
    return Claim(7, what, same, figure)


def _equal(graph: dict[str, torch.Tensor], direct) -> bool:
    hidden = direct.hidden.cpu().to(graph["hidden"].dtype)
    return torch.equal(graph["hidden"], hidden) and torch.equal(graph["tags"], direct.token_tags)


def _list_claims(server, checkpoint: Checkpoint, encoder) -> Iterator[Claim]:
    """A list of prompts against the same prompts one by one."""
    names = [f"{LISTED.name}_{i}" for i in range(len(PROMPTS))]
    graph = with_options(demo_requests.graph(LISTED, checkpoint.value))
    graph["texts"] = node("H3TETextList", texts="\n".join(PROMPTS), prefix=f"h3te_demo_{LISTED.name}_")
    graph["encode"]["inputs"]["prompt"] = ["texts", 0]
    graph["probe"]["inputs"]["name"] = ["texts", 1]
    together = _seconds(lambda: server.run(graph, timeout=36_000))
    references = demo_requests.references(LISTED)
    requests = [replace(LISTED, name=name, prompt=prompt) for name, prompt in zip(names, PROMPTS, strict=True)]
    found = [probed(server, request) for request in requests]
    same = all(
        _equal(one, encoder.encode(request.prompt, references)) for one, request in zip(found, requests, strict=True)
    )
    graphs = [with_options(demo_requests.graph(request, checkpoint.value)) for request in requests]
    alone = sum(_seconds(lambda each=each: server.run(each, timeout=36_000)) for each in graphs)
    figure = (
        f"{len(PROMPTS)} prompts with the same pictures, {'each bit-equal' if same else 'not all equal'}; "
        f"{together:.1f} s together, {alone:.1f} s one by one ({together / alone:.2f})"
    )
    yield Claim(7, "A list of prompts in one pass over the weights", same, figure)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
