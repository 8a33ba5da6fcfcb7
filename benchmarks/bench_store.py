"""The conditioning store at the real width: a hit from memory and from disk against the encode that it spares.

Two keyframes and a prompt: 2344 tokens of 5120 values in bf16 (24 MB), 4 decoder layers, the whole vision tower. With
the released 50 layers the decoder's share of an encode is twelve times as long; a hit takes what it takes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import layout
from disk_space import require_space
from given_checkpoint import bundled_tokenizer
from rounds import median, run, take_turns
from verdict import Target, Verdict, at_most
from wide_files import bf16_folder

REQUESTS = ("keyframes", "prompt")
LAYERS, LIMIT_SECONDS = 4, 1800
FASTER, HIT_MS, HIT_TOKENS = 500, 50.0, 2000
STORE_BYTES = 1e8


def bench(rounds: int, host: Path) -> Verdict:
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    require_space(layout.TEMP, STORE_BYTES, "bench store", "conditioning store")
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="store_") as kept:
        cases = {name: partial(measure, folder, name, tokenizer, Path(kept) / name) for name in REQUESTS}
        found = take_turns(cases, min(rounds, 3))
    rows = {name: row(of) for name, of in found.items()}
    return Verdict("store", lines(rows), targets(rows), {"layers": LAYERS, **rows})


def measure(folder: Path, request: str, tokenizer: Path, store: Path) -> dict:
    """One encode and its hits in a process of its own; see measure_store.py."""
    options = ("--layers", LAYERS, "--tokenizer", tokenizer, "--store", store)
    return run("measure_store.py", folder, request, *options, limit=LIMIT_SECONDS)


def row(rounds: Sequence[dict]) -> dict:
    hits = {place: median([found["hit"] for found in rounds], place) for place in ("ram", "disk")}
    seconds = median(rounds, "seconds")
    return {
        "tokens": rounds[0]["tokens"],
        "seconds": seconds,
        "hit_ms": {place: took * 1e3 for place, took in hits.items()},
        "faster": {place: seconds / took for place, took in hits.items()},
        "put_ms": median(rounds, "put_seconds") * 1e3,
        "weights_identity_ms": median(rounds, "weights_identity_seconds") * 1e3,
        "equal": all(found["equal"] for found in rounds),
    }


def targets(rows: Mapping[str, dict]) -> list[Target]:
    keyframes = rows["keyframes"]
    faster, tokens = keyframes["faster"]["ram"], keyframes["tokens"]
    hits = [
        at_most(f"keyframes, {tokens} tokens: hit from {place}, for {HIT_TOKENS} of them", ms * HIT_TOKENS / tokens,
                HIT_MS, " ms")
        for place, ms in keyframes["hit_ms"].items()
    ]  # fmt: skip
    return [
        (faster >= FASTER, f"keyframes: a hit from memory {faster:.3g}x as fast as the encode (at least {FASTER}x)"),
        *hits,
        (all(of["equal"] for of in rows.values()), "hidden states of every hit equal to the last bit"),
    ]


def lines(rows: Mapping[str, dict]) -> list[str]:
    found = [
        f"{'request':<11}{'tokens':>7}{'encode':>10}{'from ram':>11}{'from disk':>11}{'storing':>10}{'naming':>10}"
    ]
    for name, of in rows.items():
        hit = of["hit_ms"]
        found.append(
            f"{name:<11}{of['tokens']:>7}{of['seconds']:>9.2f}s{hit['ram']:>8.2f} ms{hit['disk']:>8.2f} ms"
            f"{of['put_ms']:>7.0f} ms{of['weights_identity_ms']:>7.1f} ms"
        )
    return [*found, "naming: the identity of the weights, once when a checkpoint is opened"]
