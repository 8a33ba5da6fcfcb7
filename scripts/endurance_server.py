"""The ComfyUI of an endurance run: in a base directory of its own, with demo checkpoints, pictures and stand-in nodes.

Contract: `prepare(host)` makes `.comfyui/endurance/` ready and returns the values of the checkpoints; `server(host)`
gives a server in it, not yet started, whose temporary files lie in `TEMPORARY`. `fresh` compares results with encodes
of a second server that keeps nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import comfy_install
import demo_checkpoint
import demo_packed
import demo_requests
import endurance_graphs
import endurance_verdict
import layout
from comfy_server import ComfyServer
from endurance_run import LIMIT, Outcome, result_of
from endurance_steps import PICTURES, Step
from endurance_verdict import Verdict
from given_checkpoint import DEMO_NAME, bundled_tokenizer

FOLDER = layout.COMFY / "endurance"
BASE = FOLDER / "base"
TEMPORARY = FOLDER / "tmp"
LOGS = layout.LOGS / "endurance"
# What is freed goes back to the system: what grows is then in use, and no gap between blocks that are. On a CPU torch's
# oneDNN keeps 1,024 compiled products, one for each number of rows: megabytes for each new length of a prompt, for
# hundreds of prompts. It keeps few here, so that 2 % are visible beside it.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "2", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "20"}
CACHE = BASE / "user" / "minimax_h3_text_encoder"


def prepare(host: Path) -> dict[str, str]:
    """Results and caches of an earlier run are deleted; checkpoints stay."""
    comfy_install.prepare_base(BASE)
    for old in (BASE / "output", BASE / "temp", BASE / "user", TEMPORARY):
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir(parents=True)
    encoders = BASE / "models" / "text_encoders"
    demo_checkpoint.make_folder(encoders / DEMO_NAME, bundled_tokenizer(host))
    packed = demo_packed.make(encoders / DEMO_NAME, "endurance")["nvfp4_awq"]
    cut = encoders / endurance_graphs.CUT
    cut.write_bytes(packed.read_bytes()[: packed.stat().st_size * 2 // 3])
    return {"bf16": DEMO_NAME + "/", "nvfp4_awq": packed.name}


def server(host: Path, name: str = "comfyui") -> ComfyServer:
    folders = {"custom_nodes": [Path(__file__).with_name("host_nodes")]}
    own = {key: str(TEMPORARY) for key in ("TMPDIR", "TEMP", "TMP")} | ALLOCATOR
    options = {"log": LOGS / f"{name}.log", "model_folders": folders, "environment": own}
    return ComfyServer(host, base=BASE, **options)


def upload_pictures(running: ComfyServer) -> None:
    demo_requests.upload_pictures(running, [demo_requests.DemoRequest("all", "", "", "", PICTURES)])


def found(name: str) -> dict:
    """What the probe wrote under that name."""
    from safetensors.torch import load_file

    return load_file(BASE / "output" / f"{name}.safetensors")


class Fresh:
    """Encodes each request once, whole; `running` keeps nothing for later."""

    def __init__(self, running: ComfyServer, checkpoints: dict[str, str]):
        self.running, self._checkpoints, self._done = running, checkpoints, {}

    @property
    def count(self) -> int:
        return len(self._done)

    def of(self, step: Step, dtype: str = "") -> list[dict]:
        """One result for each prompt of the step. dtype: instead of the step's own."""
        key = (step.identity, dtype)
        if key not in self._done:
            name = f"fresh_{len(self._done):04}"
            graph = endurance_graphs.fresh(step, name, self._checkpoints, dtype)
            self.running.run(graph, timeout=LIMIT)
            names = [f"{name}_{i}" for i in range(len(step.request.prompts))]
            self._done[key] = [found(one) for one in (names if step.request.kind == "list" else [name])]
        return self._done[key]


def judged(
    outcomes: Sequence[Outcome], fresh: Fresh, say: Callable[[str], None]
) -> Iterator[tuple[Outcome, str, Verdict]]:
    """(outcome, name of a result, verdict) for all that was done. What was loaded is held to what was saved."""
    earlier: dict[tuple, list] = {}
    for number, outcome in enumerate(outcomes):
        for place, name in enumerate(outcome.results):
            ours = found(name)
            if outcome.step.does == "load":
                yield outcome, name, _loaded(ours, int(outcome.step.detail))
                continue
            key = (outcome.step.identity, place)
            yield outcome, name, _judged(outcome, place, ours, fresh, earlier.setdefault(key, []))
            earlier[key].append(ours)
        if number % 50 == 49:
            say(f"{number + 1} steps compared, {fresh.count} fresh encodes")


def _loaded(ours: dict, saver: int) -> Verdict:
    whole = endurance_verdict.same(ours, found(f"endurance_{saver:04}"))
    return Verdict("bit") if whole else Verdict("wrong", why="expected every bit of what was saved")


def _judged(outcome: Outcome, place: int, ours: dict, fresh: Fresh, earlier: list) -> Verdict:
    step = outcome.step
    said = outcome.said[place] if place < len(outcome.said) else ""
    theirs = fresh.of(step)[place]
    exact = None
    if step.settings.dtype != "float32" and not endurance_verdict.same(ours, theirs):
        exact = fresh.of(step, "float32")[place]
    return endurance_verdict.verdict(ours, theirs, exact, step.settings.whole, said, earlier)


__all__ = ["BASE", "CACHE", "FOLDER", "TEMPORARY", "Fresh", "found", "judged", "prepare", "result_of", "server"]
