"""The demo's claims, each checked in this run: what was compared, the figure, PASS or FAIL.

Contract: every function returns `Claim`s and asserts nothing; a claim that could not be checked is a FAIL that says
why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import demo_requests
import layout
import torch
from demo_requests import AFTER_STOP, KEYFRAMES, REQUESTS, STOPPED, DemoRequest
from given_checkpoint import Checkpoint
from pack import h3te_module
from safetensors.torch import load_file

FLOAT32_LIMIT = 2e-4  # relative L2 against the official path; measured values are about 1e-6
COPY_LIMIT = 0.10  # private memory that loading may take, as a share of the weights


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
    from official_path import OfficialPath

    tap = h3te_module("encoder").SELECTED_LAYER
    results: dict[tuple[str, torch.dtype], tuple] = {}
    for dtype in (torch.float32, torch.bfloat16):
        official = OfficialPath(checkpoint.path, tap_layer=tap, dtype=dtype, tokenizer=checkpoint.official_tokenizer)
        encoder = h3te_module("encoder").load_encoder(checkpoint.path, dtype=dtype, tokenizer=checkpoint.tokenizer)
        for request in REQUESTS:
            say(f"{request.title}: transformers in {str(dtype)[6:]}")
            references = demo_requests.references(request)
            theirs = official.encode(request.prompt, references)
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
        started = time.perf_counter()
        outputs = server.run(demo_requests.graph(request, checkpoint.value), timeout=36_000)
        seconds = time.perf_counter() - started
        yield _graph_claim(request, server, encoder, seconds, json.loads(outputs["probe"]["text"][0]))


def direct_encoder(checkpoint: Checkpoint):
    """The encoder called without ComfyUI, computing where ComfyUI computes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return h3te_module("encoder").load_encoder(checkpoint.path, device=device, tokenizer=checkpoint.tokenizer)


def probed(server, request: DemoRequest) -> dict[str, torch.Tensor]:
    """hidden and tags that the probe wrote for a request."""
    return load_file(server.base / "output" / f"h3te_demo_{request.name}.safetensors")


def _graph_claim(request: DemoRequest, server, encoder, seconds: float, facts: dict) -> Claim:
    direct = encoder.encode(request.prompt, demo_requests.references(request))
    graph = probed(server, request)
    passed = _equal(graph, direct)
    what = f"{request.title}: the node graph equals the encoder called directly"
    figure = (
        f"{len(direct.token_ids)} tokens, {seconds:.1f} s in the graph, {facts['dtype'][6:]} on {facts['device']}; "
    )
    return Claim(2, what, passed, figure + ("bit-equal, tags equal" if passed else _difference(graph, direct)))


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
        prompt_id = server.queue(demo_requests.graph(STOPPED, checkpoint.value))
        at = events.wait_for(lambda kind, data: _encoding(kind, data, prompt_id), timeout=3600)
        pressed = time.perf_counter()
        server.interrupt()
        entry = server.wait(prompt_id, timeout=3600)
    waited = time.perf_counter() - pressed
    kinds = [kind for kind, _ in entry["status"]["messages"]]
    stopped = "execution_interrupted" in kinds and not entry["status"]["completed"]
    figure = f"pressed at step {at['value']:.0f} of {at['max']:.0f}, stopped after {waited:.2f} s"
    yield Claim(4, "Stop in the middle of an encode", stopped, figure)
    server.run(demo_requests.graph(AFTER_STOP, checkpoint.value), timeout=36_000)
    direct = direct_encoder(checkpoint).encode(AFTER_STOP.prompt)
    graph = probed(server, AFTER_STOP)
    same = _equal(graph, direct)
    yield Claim(4, "The prompt after Stop is right", same, "bit-equal" if same else _difference(graph, direct))


def _encoding(kind: str, data: dict, prompt_id: str) -> bool:
    return kind == "progress" and data.get("prompt_id") == prompt_id and 2 <= data["value"] < data["max"]


def memory_claims(server, checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 3: only needed shards are opened, and loading makes no second copy of the weights."""
    say("Files and memory")
    yield from _mapped_claim(server, checkpoint)
    figures = _measured(checkpoint.path, checkpoint.tokenizer)
    extra = sorted(set(figures["opened"]) - set(figures["needed"]))
    passed = not extra and figures["opened_before_first_use"] == 0
    of = len(figures["needed"]) + len(figures["unneeded"])
    figure = f"{len(figures['opened'])} of {of} files opened, none before first use"
    yield Claim(3, "Files that hold nothing needed are not opened", passed, figure if passed else f"opened {extra}")
    yield _copy_claim(figures)
    if checkpoint.is_demo and figures["unneeded"]:
        yield _absent_claim(checkpoint, figures)


def _mapped_claim(server, checkpoint: Checkpoint) -> Iterator[Claim]:
    import psutil

    catalog = h3te_module("encoder.checkpoint.catalog").open_catalog(checkpoint.path, 50)
    try:
        paths = {Path(region.path) for region in psutil.Process(server.process.pid).memory_maps()}
    except (AttributeError, psutil.AccessDenied):
        return  # this system does not tell which files a process maps
    # resolved: a download cache keeps links to files of other names
    unneeded = paths & {file.resolve() for file in catalog.files_unneeded}
    needed = paths & {file.resolve() for file in catalog.files_needed}
    figure = f"{len(needed)} of {len(catalog.files_needed)} needed files mapped, {len(unneeded)} unneeded"
    yield Claim(3, "The running ComfyUI maps needed files only", bool(needed) and not unneeded, figure)


def _copy_claim(figures: dict) -> Claim:
    megabytes = {key: value / 1e6 for key, value in figures.items() if isinstance(value, int)}
    peak = megabytes["peak"] - megabytes["base_resident"]
    figure = f"weights {megabytes['weight_bytes']:,.0f} MB; peak above the imported process {peak:,.0f} MB"
    if figures["copied"] is None:
        return Claim(3, "Memory of one encode", True, figure)
    passed = figures["copied"] <= COPY_LIMIT * figures["weight_bytes"]
    figure = f"{figure}; copied {megabytes['copied']:,.1f} MB"
    return Claim(3, "Loading makes no second copy of the weights", passed, figure)


def _absent_claim(checkpoint: Checkpoint, figures: dict) -> Claim:
    folder = layout.TEMP / "needed_only"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint.path, folder, ignore=shutil.ignore_patterns(*figures["unneeded"]))
    try:
        without = _measured(folder, checkpoint.tokenizer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    passed = without["tokens"] == figures["tokens"]
    return Claim(3, "It runs with the unneeded shards deleted", passed, f"without {', '.join(figures['unneeded'])}")


def _measured(path: Path, tokenizer: Path) -> dict:
    command = [sys.executable, str(Path(__file__).with_name("measure_encode.py")), str(path), "--tokenizer"]
    done = subprocess.run(
        [*command, str(tokenizer), "--request", KEYFRAMES.name],
        capture_output=True,
        text=True,
        env=layout.child_environment(),
    )
    if done.returncode:
        raise RuntimeError(f"measure_encode: expected figures, got an error:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
