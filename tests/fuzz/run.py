"""Runs one fuzz target under atheris until its time is over: `python tests/fuzz/run.py NAME --seconds 600`.

Contract: needs atheris. Inputs that reached new code are kept in `--folder`/corpus; each input whose error is none of
ours, or that took too long or too much memory, lies in `--folder`/findings with its traceback, one per place in the
code, and fuzzing goes on. The process is bounded: what asks for more than LIMIT_BYTES gets a MemoryError, which is a
finding. The last lines are libFuzzer's statistics.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import logging
import random
import resource
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType

import atheris

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("safetensors_header", "gguf_header", "conditioning_file", "worker_protocol")
LOGGERS = ("asyncio", "aiohttp.server", "h3te")
LIMIT_BYTES = 3 << 30  # of memory beyond what the imports take
GROWN_BYTES = 256 << 20  # of the process's peak, by one input
SECONDS = 5.0  # for one input, of processor time
LONGEST = 1 << 16  # bytes of an input


class Findings:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, data: bytes, what: str, text: str) -> None:
        """One file per place: a second input of the same is passed over."""
        name = hashlib.sha256(what.encode()).hexdigest()[:12]
        if not (self.folder / name).exists():
            (self.folder / name).write_bytes(data)
            (self.folder / f"{name}.txt").write_text(f"{what}\n\n{text}", encoding="utf-8", errors="replace")
            print(f"FINDING {name}: {what}", flush=True)


def place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"


def watched(target: ModuleType, findings: Findings):
    """`target.one` as atheris calls it."""

    def one(data: bytes) -> None:
        started, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            target.one(data)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a finding)
            findings.keep(data, place_of(error), "".join(traceback.format_exception(error)))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        spent = time.process_time() - started
        if spent > SECONDS:
            findings.keep(data, f"slow: more than {SECONDS} s", f"{spent:.1f} s")
        if grown > GROWN_BYTES:
            findings.keep(data, f"large: more than {GROWN_BYTES:,} bytes", f"{grown:,} bytes")

    return one


def mutator(target: ModuleType):
    """Half of the inputs change as the format is built, the others byte by byte."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        changed = data if chance.random() < 0.3 else target.mutated(data, chance)
        return atheris.Mutate(changed, most) if changed is data or chance.random() < 0.2 else changed[:most]

    return mutate


def loaded(name: str) -> ModuleType:
    """The target, with the pack's modules counted as they are imported."""
    spec = importlib.util.spec_from_file_location("conftest", ROOT / "tests" / "conftest.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with atheris.instrument_imports(include=["h3te", "gguf"], exclude=["h3te_tests"]):
        target = importlib.import_module(f"h3te_tests.fuzz.{name}")
        target.prepare()
    return target


def bound() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES,) * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz one target.")
    parser.add_argument("name", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", type=Path, required=True, help="for the corpus and the findings")
    given = parser.parse_args()
    corpus, findings = given.folder / "corpus", Findings(given.folder / "findings")
    corpus.mkdir(parents=True, exist_ok=True)
    target = loaded(given.name)
    for name, seed in target.seeds().items():
        (corpus / f"seed-{name}").write_bytes(seed)
    bound()
    for name in LOGGERS:  # hundreds of refusals a second
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = [f"-max_total_time={given.seconds}", f"-max_len={LONGEST}", "-timeout=60", "-rss_limit_mb=0",
               "-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={findings.folder}/", str(corpus)]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], watched(target, findings), custom_mutator=mutator(target))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
