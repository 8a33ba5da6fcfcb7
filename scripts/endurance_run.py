"""An endurance run in a running ComfyUI: every step of a plan, what became of it, and what ComfyUI holds meanwhile.

Contract: `run(server, steps, ...)` -> `Run`. An outcome is `done`, `stopped`, `refused` (an error that was meant) or
`failed` with the reason. Every REST steps all caches are cleared and ComfyUI is asked to unload; what it holds then is
measured. Conditioning lies in ComfyUI's output folder under `result_of(step)`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import endurance_graphs
from comfy_client import PromptFailed, ValidationError, failure
from endurance_measure import Footprint, footprint
from endurance_steps import Step

REST = 15
SETTLE = 1.5  # seconds: ComfyUI unloads between prompts
LIMIT = 600
_CACHE = re.compile(r"cache: ([^\n]+)")
_SAVED = re.compile(r"saved (.+)")


@dataclass(frozen=True)
class Outcome:
    """said: what the encode node said about the caches, one line a prompt. file: what a save wrote."""

    step: Step
    state: str
    why: str = ""
    said: tuple[str, ...] = ()
    file: str = ""
    seconds: float = 0.0

    @property
    def results(self) -> list[str]:
        """Names of what the probe wrote."""
        if self.state != "done" or self.step.does not in ("encode", "save", "load", "stop"):
            return []
        name, count = result_of(self.step), len(self.step.request.prompts)
        listed = self.step.request.kind == "list" and self.step.does != "load"
        return [f"{name}_{i}" for i in range(count)] if listed else [name]


@dataclass
class Run:
    """rests: (number of the step, footprint) at rest; busy: the same before caches were cleared."""

    outcomes: list[Outcome] = field(default_factory=list)
    rests: list[tuple[int, Footprint]] = field(default_factory=list)
    busy: list[tuple[int, Footprint]] = field(default_factory=list)


def result_of(step: Step) -> str:
    return f"endurance_{step.number:04}"


def run(server, steps: Sequence[Step], checkpoints: dict[str, str], temporary: Path, say: Callable[[str], None]) -> Run:
    """Returns after the last step; a server that has gone ends the run with a failed outcome."""
    found, saved = Run(), {}
    for step in steps:
        outcome = _outcome(server, step, checkpoints, saved)
        found.outcomes.append(outcome)
        if outcome.file:
            saved[step.number] = outcome.file
        if outcome.state == "failed":
            say(f"step {step.number}, {step.does}: {outcome.why[:300]}")
        if server.process.poll() is not None:
            break
        if (step.number + 1) % REST == 0:
            _rest(server, found, step.number + 1, temporary)
            done = sum(one.state == "done" for one in found.outcomes)
            say(f"{step.number + 1} steps, {done} results, {found.rests[-1][1].rss / 1e6:.0f} MB at rest")
    return found


def _rest(server, found: Run, number: int, temporary: Path) -> None:
    folders = [server.base / name for name in ("output", "user", "temp")]
    found.busy.append((number, footprint(server.process.pid, folders, temporary)))
    server.run(endurance_graphs.clearing("all"))
    server.free()
    time.sleep(SETTLE)
    found.rests.append((number, footprint(server.process.pid, folders, temporary)))


def _outcome(server, step: Step, checkpoints: dict[str, str], saved: dict[int, str]) -> Outcome:
    started = time.perf_counter()
    try:
        outcome = _DOES[step.does](server, step, checkpoints, saved)
    except (PromptFailed, ValidationError, TimeoutError, OSError) as error:
        outcome = Outcome(step, "failed", f"{type(error).__name__}: {error}")
    return Outcome(step, outcome.state, outcome.why, outcome.said, outcome.file, seconds=time.perf_counter() - started)


def _encoded(server, step: Step, checkpoints, saved) -> Outcome:
    outputs = server.run(endurance_graphs.graph(step, result_of(step), checkpoints), timeout=LIMIT)
    said = "\n".join(outputs.get("encode", {}).get("text", ()))
    file = _SAVED.match(outputs["save"]["text"][0])[1] if "save" in outputs else ""
    return Outcome(step, "done", said=tuple(_CACHE.findall(said)), file=file)


def _loaded(server, step: Step, checkpoints, saved) -> Outcome:
    file = saved.get(int(step.detail))
    if file is None:
        return Outcome(step, "stopped", "what it loads was not saved")
    server.run(endurance_graphs.loading(file, result_of(step)), timeout=LIMIT)
    return Outcome(step, "done")


def _stopped(server, step: Step, checkpoints, saved) -> Outcome:
    """Stop may come too late: then the result counts as any other."""
    prompt_id = server.queue(endurance_graphs.graph(step, result_of(step), checkpoints))
    time.sleep(float(step.detail))
    server.interrupt(prompt_id)
    entry = server.wait(prompt_id, timeout=LIMIT)
    if entry["status"]["completed"]:
        return Outcome(step, "done")
    if any(kind == "execution_interrupted" for kind, _ in entry["status"]["messages"]):
        return Outcome(step, "stopped")
    raise PromptFailed(failure(entry) or "neither stopped nor completed", entry)


def _broken(server, step: Step, checkpoints, saved) -> Outcome:
    graph, named = endurance_graphs.broken(step, result_of(step), checkpoints)
    try:
        server.run(graph, timeout=LIMIT)
    except (PromptFailed, ValidationError) as error:
        if named in str(error):
            return Outcome(step, "refused")
        return Outcome(step, "failed", f"expected an error that names {named!r}, got {error}")
    return Outcome(step, "failed", f"expected an error that names {named!r}, got none")


def _cleared(server, step: Step, checkpoints, saved) -> Outcome:
    server.run(endurance_graphs.clearing(step.detail), timeout=LIMIT)
    return Outcome(step, "done")


def _freed(server, step: Step, checkpoints, saved) -> Outcome:
    server.free()
    return Outcome(step, "done")


_DOES = {
    "encode": _encoded,
    "preview": _encoded,
    "save": _encoded,
    "load": _loaded,
    "stop": _stopped,
    "error": _broken,
    "clear": _cleared,
    "free": _freed,
}
