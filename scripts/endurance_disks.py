"""A disk that is full and folders that may not be written to, under a running ComfyUI.

Contract: `run(host, say)` -> claims. What must hold: encoding goes on with the right result, the disk cache says
what is wrong once and works again as soon as it can, a save node fails with an error that names the reason and leaves
nothing, and what lies in a folder that is only read still answers. No rights are needed: the full disk is a limit to
the size of files (Linux), and a process of root gives up the right to write everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import demo_claims
import demo_requests
import endurance_server
from comfy_client import PromptFailed
from demo_requests import DemoRequest, node, with_options
from endurance_graphs import clearing
from endurance_report import Claim
from endurance_server import BASE, CACHE
from endurance_verdict import same
from given_checkpoint import DEMO_NAME, Checkpoint

MOST_BYTES = 200_000  # of a file while the disk is "full": more than ComfyUI's log has, less than an entry
PROMPT = "The fog lifts, gulls call, ropes creak, the lamp turns and the tide runs out again. " * 120
FULL, LOCKED = (DemoRequest(name, "", "references", f"{name}: {PROMPT}") for name in ("full", "locked"))
OUTPUT, ENTRIES = BASE / "output" / "disks", CACHE / "conditioning"
SAID = "conditioning store: expected to write into"
WRITES_ANYWHERE = 1  # number of the capability CAP_DAC_OVERRIDE
DROP_FROM_BOUNDS = 24  # PR_CAPBSET_DROP of prctl


def run(host: Path, say: Callable[[str], None]) -> list[Claim]:
    demo = BASE / "models" / "text_encoders" / DEMO_NAME
    checkpoint = Checkpoint(demo, DEMO_NAME + "/", demo, demo, True)
    encoder = demo_claims.direct_encoder(checkpoint)
    direct = {request.name: encoder.encode(request.prompt) for request in (FULL, LOCKED)}
    _give_up_rights()
    with endurance_server.server(host, "disks") as server:
        say("a full disk")
        claims = list(_bad_disk(server, checkpoint, FULL, direct["full"], "full disk", _no_room(server.process.pid)))
        say("folders that may not be written to")
        claims += _bad_disk(server, checkpoint, LOCKED, direct["locked"], "read-only folders", _read_only())
    return claims


def _bad_disk(server, checkpoint: Checkpoint, request: DemoRequest, direct, what: str, trouble) -> Iterator[Claim]:
    """Encodes and saves in the trouble and after it."""
    known = replace(request, name="known", prompt=f"Stored before: {what}.")
    server.run(_encoding(known, checkpoint))
    OUTPUT.mkdir(exist_ok=True)
    files, said = _files(), server.log().count(SAID)
    with trouble as possible:
        if not possible:
            yield Claim(what.capitalize(), True, "NOT RUN: this system cannot make one without rights")
            return
        texts = [_text(server, _encoding(request, checkpoint)) for _ in range(2)]
        server.run(clearing("conditioning in RAM"))
        answered = _text(server, _encoding(known, checkpoint))
        refusal = _refusal(server, _saving(request, checkpoint))
        left = sorted(_files() - files)
    said = server.log().count(SAID) - said
    yield Claim(
        f"{what.capitalize()}: encoding goes on", "miss" in texts[0] and "hit (RAM)" in texts[1], _caches(*texts)
    )
    yield Claim(f"{what.capitalize()}: the disk cache says so once", said == 1, f"{said} times in the log")
    yield Claim(
        f"{what.capitalize()}: what was stored before still answers", "hit (disk)" in answered, _caches(answered)
    )
    yield Claim(
        f"{what.capitalize()}: saving fails by name", "expected to write" in refusal, refusal[-160:] or "no error"
    )
    yield Claim(f"{what.capitalize()}: nothing half-written is left", not left, ", ".join(left) or "nothing")
    server.run(clearing("conditioning in RAM"))
    outputs = server.run(_saving(request, checkpoint, probe=True), timeout=600)
    found = demo_claims.probed(server, request)
    right = same(found, {"hidden": direct.hidden.cpu().float(), "tags": direct.token_tags})
    stored = "hit (disk)" in _text(server, _encoding(request, checkpoint), clear=True)
    figure = f"{'equal to the bit' if right else 'DIFFERS'}, {outputs['save']['text'][0].splitlines()[0]}"
    yield Claim(
        f"{what.capitalize()}, afterwards: encoded, stored and saved", right and stored, figure + f", stored: {stored}"
    )


def _encoding(request: DemoRequest, checkpoint: Checkpoint) -> dict:
    """Nothing but the pack's caches writes a file. A number that changes nothing keeps ComfyUI's own cache out."""
    graph = with_options(demo_requests.graph(request, checkpoint.value), exact=True, conditioning_cache="ram and disk")
    graph["encode"]["inputs"]["length"] = next(_lengths)
    graph["probe"] = node("PreviewAny", source=["encode", 2])
    return graph


_lengths = iter(range(5, 100_000, 17))


def _saving(request: DemoRequest, checkpoint: Checkpoint, probe: bool = False) -> dict:
    graph = _encoding(request, checkpoint)
    graph["save"] = node("H3TESaveConditioning", conditioning=["encode", 0], filename_prefix="disks/h3")
    if probe:
        graph["probe"] = node("H3TEConditioningProbe", conditioning=["save", 0], name=f"h3te_demo_{request.name}")
    return graph


def _text(server, graph: dict, clear: bool = False) -> str:
    if clear:
        server.run(clearing("conditioning in RAM"))
    return "\n".join(server.run(graph, timeout=600)["encode"]["text"])


def _caches(*texts: str) -> str:
    return ", ".join(line for text in texts for line in text.splitlines() if "cache: " in line)


def _refusal(server, graph: dict) -> str:
    try:
        server.run(graph, timeout=600)
    except PromptFailed as error:
        return str(error)
    return ""


def _files() -> set[str]:
    return {str(path.relative_to(BASE)) for folder in (OUTPUT, CACHE) for path in folder.rglob("*") if path.is_file()}


@contextmanager
def _no_room(pid: int) -> Iterator[bool]:
    """No file of that process may grow beyond MOST_BYTES meanwhile."""
    if not sys.platform.startswith("linux"):
        yield False
        return
    import resource

    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (MOST_BYTES, before[1]))
    try:
        yield True
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def _read_only() -> Iterator[bool]:
    """The folder of the output and that of the disk cache."""
    folders = [folder for folder in (OUTPUT, ENTRIES, ENTRIES / "identities") if folder.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield os.name != "nt" and (os.geteuid() != 0 or _gave_up)
    finally:
        for folder in folders:
            folder.chmod(0o755)


_gave_up = False


def _give_up_rights() -> None:
    """Processes that root starts from now on heed the rights of files, as everybody's do."""
    global _gave_up
    if sys.platform.startswith("linux") and os.geteuid() == 0:
        with contextlib.suppress(OSError, AttributeError):
            _gave_up = ctypes.CDLL(None).prctl(DROP_FROM_BOUNDS, WRITES_ANYWHERE, 0, 0, 0) == 0
