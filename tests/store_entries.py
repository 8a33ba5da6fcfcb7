"""Entries of a conditioning store that follow from a number, and the processes that write them.

store_entries.py kill FOLDER MOMENTS     kills writers at random moments, so many within a write
store_entries.py share FOLDER FIRST LAST BUDGET    stores these numbers and asks for others meanwhile
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging.handlers
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
    from pack import h3te_module
else:
    from importlib import import_module

    def h3te_module(name: str):
        return import_module(f"h3te.{name}")


store_module, identity_module = (h3te_module(f"encoder.cache.{name}") for name in ("conditioning_store", "identity"))
StoredConditioning, ConditioningStore = store_module.StoredConditioning, store_module.ConditioningStore
IDENTITY = identity_module.EncoderIdentity("ab", "bf16", "bfloat16", 50, "official", "ours", label="the file")
CONFIG = {"text_config": {"hidden_size": 8}}
MOST_KILLS = 40  # for each one within a write; on a busy machine many a writer is killed before or after


def key(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def stored(number: int, tokens: int = 3, width: int = 8, dtype: torch.dtype = torch.bfloat16) -> StoredConditioning:
    generator = torch.Generator().manual_seed(number)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    return StoredConditioning(hidden, torch.arange(tokens) % 2, torch.arange(tokens) + number, {"prompt": f"{number}"})


def same(one: StoredConditioning, other: StoredConditioning) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("hidden", "token_tags", "token_ids")]
    return one.facts == other.facts and all(a.dtype == b.dtype and a.equal(b) for a, b in pairs)


def disk_store(folder: Path, budget: int = 1 << 30) -> ConditioningStore:
    """Without memory of its own: every answer is read from the disk."""
    return ConditioningStore(ram_budget=0, folder=folder, disk_budget=budget)


@functools.cache
def _base() -> StoredConditioning:
    return stored(0, 256, 2048)


def large(number: int) -> StoredConditioning:
    """One that is written for longer (1 MB) than it takes to make."""
    hidden = _base().hidden.clone()
    hidden[number % 256] = 1.0
    return StoredConditioning(hidden, _base().token_tags, _base().token_ids + number, {"prompt": f"{number}"})


def run(*arguments: object) -> dict:
    """What the process prints."""
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, str(Path(__file__)), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def write_for_ever(folder: Path, first: int, said: int) -> None:
    """Stores one after the other; writes the number of each to the handle `said` once it is stored."""
    store = disk_store(folder)
    for number in itertools.count(first):
        store.put(key(number), large(number), IDENTITY, CONFIG)
        os.write(said, b"%d\n" % number)


def kill_forked(folder: Path, first: int, seconds: float) -> list[int]:
    """A writer that lives for so long; the numbers that it had stored."""
    listens, said = os.pipe()
    writer = os.fork()
    if writer == 0:
        write_for_ever(folder, first, said)
    os.close(said)
    time.sleep(seconds)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    with os.fdopen(listens, "rb") as pipe:
        return [int(line) for line in pipe.read().split()]


def kill_started(folder: Path, first: int, seconds: float) -> list[int]:
    """As `kill_forked`, where a system cannot fork."""
    with start("write", folder, first) as writer:
        head = writer.stdout.readline()
        time.sleep(seconds)
        writer.kill()
        return [int(line) for line in (head + writer.stdout.read()).split()]


def kill(folder: Path, moments: int) -> dict:
    """Kills writers until so many were within a write. The numbers that were stored, and the files left unfinished."""
    large(0)  # ready before the first writer
    one, chance = kill_forked if hasattr(os, "fork") else kill_started, random.Random(moments)
    numbers, unfinished, killed = [], 0, 0
    while unfinished < moments and killed < MOST_KILLS * moments:
        numbers += one(folder, 10_000 * killed, chance.uniform(0.001, 0.03))
        unfinished, killed = len(list(folder.glob("*.partial"))), killed + 1
    return {"stored": numbers, "unfinished": unfinished}


def share(folder: Path, first: int, last: int, budget: int) -> dict:
    """Every answer must be whole. How many there were, and what was logged."""
    told = logging.handlers.BufferingHandler(1000)
    logging.getLogger().addHandler(told)
    store, chance, hits = disk_store(folder, budget), random.Random(first), 0
    for number in range(first, last):
        store.put(key(number), stored(number, 16), IDENTITY, CONFIG)
        for asked in (chance.randrange(last), number):
            found = store.get(key(asked))
            hits += found is not None
            assert found is None or same(found[0], stored(asked, 16))
    return {"hits": hits, "told": [record.getMessage() for record in told.buffer]}


def main() -> None:
    what, folder, *numbers = sys.argv[1:]
    if what == "write":
        write_for_ever(Path(folder), int(numbers[0]), sys.stdout.fileno())
    print(json.dumps({"kill": kill, "share": share}[what](Path(folder), *map(int, numbers))))


if __name__ == "__main__":
    main()
