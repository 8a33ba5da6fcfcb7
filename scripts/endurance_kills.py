"""ComfyUI killed at random moments while it encodes, saves and writes its disk cache, and started again each time.

Contract: `run(host, kills, seed, say)` -> claims. Every second kill waits for an unfinished file to appear and strikes
then. After each restart the same prompts run again and must equal the encoder called directly, to the bit; every saved
file must load to the bit; no file under its final name is damaged; unfinished ones go once they are old; checkpoints
stay as they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import demo_claims
import demo_requests
import endurance_server
from demo_requests import KEYFRAMES, DemoRequest, node, with_options
from endurance_graphs import clearing, loading
from endurance_report import Claim
from endurance_server import BASE, CACHE
from endurance_verdict import same
from given_checkpoint import DEMO_NAME, Checkpoint

BURST = 8  # prompts queued at once
LONGEST = 6.0  # seconds after which the last random kill comes
APPEARS = 60.0  # seconds in which an unfinished file must appear
HOUR = 3600
SAVED = BASE / "output" / "killed"
LONG = " The fog lifts, gulls call, ropes creak, the lamp turns and the tide runs out again." * 40
_CLEARED = clearing("all")
DAMAGE = ("as this store wrote it", "is damaged")  # what the store's and the loader's words for it have in common


@dataclass
class Seen:
    """Of all rounds. within: kills while a file was being written; differing: results that are not the direct one."""

    kills: int = 0
    within: int = 0
    again: int = 0
    loaded: int = 0
    hits: int = 0
    unfinished: int = 0
    differing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def run(host: Path, kills: int, seed: int, say: Callable[[str], None]) -> list[Claim]:
    encoders = BASE / "models" / "text_encoders"
    demo = encoders / DEMO_NAME
    checkpoint = Checkpoint(demo, DEMO_NAME + "/", demo, demo, True)
    before, chance, seen = _digest(encoders), random.Random(seed), Seen()
    encoder = demo_claims.direct_encoder(checkpoint)
    direct = {request.name: _direct(encoder, request) for request in _burst(0)}
    for number in range(kills):
        with endurance_server.server(host, f"killed_{number}") as server:
            demo_requests.upload_pictures(server)
            _check(server, checkpoint, direct, seen, number)
            _kill(server, checkpoint, number, chance, seen)
        left = list(_unfinished())
        seen.unfinished, seen.within = seen.unfinished + len(left), seen.within + bool(left)
        _make_old(left)
        say(f"kill {number + 1} of {kills}: {len(left)} unfinished files, {_saved_count()} saved")
    with endurance_server.server(host, "after_kills") as server:
        _check(server, checkpoint, direct, seen, kills)
        said = server.log()
    seen.damaged += [line for line in said.splitlines() if any(word in line for word in DAMAGE)]
    return list(_claims(seen, before == _digest(encoders)))


def _burst(number: int) -> list[DemoRequest]:
    """The same requests for every round but for their names: those of other prompts are computed and stored anew."""
    texts = [DemoRequest(f"kill_{i}", "", "references", f"Take {i}." + LONG) for i in range(BURST - 2)]
    pictured = [
        DemoRequest(f"kill_{i}", "", "keyframes", f"Take {i}: {KEYFRAMES.prompt}", KEYFRAMES.pictures, 448, 256)
        for i in range(BURST - 2, BURST)
    ]
    return [*texts, *pictured]


def _graph(request: DemoRequest, checkpoint: Checkpoint, number: int) -> dict:
    """Encoded, kept on disk, saved. The prompt of each round is its own until it is asked for again."""
    cached = {"exact": True, "conditioning_cache": "ram and disk"}
    graph = with_options(demo_requests.graph(request, checkpoint.value), **cached)
    prefix = f"killed/{request.name}_of_{number}"
    graph["save"] = node("H3TESaveConditioning", conditioning=["encode", 0], filename_prefix=prefix)
    graph["probe"]["inputs"]["conditioning"] = ["save", 0]
    return graph


def _direct(encoder, request: DemoRequest) -> dict:
    found = encoder.encode(request.prompt, demo_requests.references(request))
    return {"hidden": found.hidden.cpu().float(), "tags": found.token_tags}


def _kill(server, checkpoint: Checkpoint, number: int, chance: random.Random, seen: Seen) -> None:
    """Clears the caches first, so that all is encoded and written again."""
    server.run(_CLEARED)
    for request in _burst(number):
        server.queue(_graph(request, checkpoint, number))
    if number % 2:
        _await_unfinished(chance.randrange(3))  # later ones come too late on a busy machine
    else:
        time.sleep(chance.uniform(0.1, LONGEST))
    _strike(server)
    seen.kills += 1


def _await_unfinished(others: int) -> None:
    """Returns at the moment in which an unfinished file appears, the first after so many."""
    ends, known = time.monotonic() + APPEARS, set()
    while time.monotonic() < ends and len(known) <= others:
        known |= {path.name for path in _unfinished()}


def _unfinished() -> Iterator[Path]:
    """Of the pack, where this run writes: quick, because these files live for milliseconds."""
    for folder in (SAVED, CACHE / "conditioning"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if entry.name.endswith((".partial", ".tmp")))


def _strike(server) -> None:
    """SIGKILL, or what Windows has for it."""
    server.process.kill()
    server.process.wait(10)


def _make_old(files: list[Path]) -> None:
    for file in files:
        os.utime(file, (time.time() - HOUR,) * 2)


def _is_old(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > HOUR / 2


def _check(server, checkpoint: Checkpoint, direct: dict, seen: Seen, number: int) -> None:
    """What was queued when ComfyUI was killed runs again, from the disk cache where it was stored; saved files load."""
    if number == 0:
        return
    for request in _burst(number):
        outputs = server.run(_graph(request, checkpoint, number - 1), timeout=600)
        seen.hits += "hit (disk)" in "\n".join(outputs.get("encode", {}).get("text", ()))
        seen.again += 1
        if not same(demo_claims.probed(server, request), direct[request.name]):
            seen.differing.append(f"{request.name} after kill {number}")
    for file in sorted(SAVED.glob("*.safetensors")):
        _load(server, file, direct, seen)
    server.run(_CLEARED)
    seen.damaged += [f"left for good: {path.name}" for path in _unfinished() if _is_old(path)]


def _load(server, file: Path, direct: dict, seen: Seen) -> None:
    name = file.name.partition("_of_")[0]
    try:
        server.run(loading(f"killed/{file.name} [output]", "h3te_demo_loaded"))
    except (RuntimeError, ValueError) as error:
        seen.damaged.append(f"{file.name}: {error}")
        return
    seen.loaded += 1
    if not same(demo_claims.probed(server, DemoRequest("loaded", "", "", "")), direct[name]):
        seen.differing.append(file.name)
    file.unlink()


def _saved_count() -> int:
    return len(list(SAVED.glob("*.safetensors")))


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def _claims(seen: Seen, untouched: bool) -> Iterator[Claim]:
    figure = f"{seen.within} of them while a file was being written"
    yield Claim(f"ComfyUI killed {seen.kills} times starts again", seen.kills > 0, figure)
    figure = f"{seen.hits} answered from the disk; {seen.differing[:3] or 'all equal to the bit'}"
    right = seen.again > 0 and not seen.differing
    yield Claim(f"{seen.again} prompts run again equal the encoder called directly", right, figure)
    figure = "; ".join(seen.damaged[:3]) or f"{seen.unfinished} unfinished ones were left, and gone at the next write"
    yield Claim(f"{seen.loaded} saved files load, no file is damaged", seen.loaded > 0 and not seen.damaged, figure)
    yield Claim("Checkpoints are as they were", untouched, "equal to the bit" if untouched else "CHANGED")
