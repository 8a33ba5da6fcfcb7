"""The encoder on 1, 2 and 4 ranks of this machine's processors, and through a worker: time, bytes, memory, error.

At the real width in bf16 with 4 decoder layers and the whole vision tower: a prompt of 312 tokens, and two keyframes
with it (2344 tokens). The ranks share the same cores, so what one learns of time is what they cost, not what they gain:
the tower is computed by each of them, and sums pass through memory. Bytes are what they are on any device. The worker
has one rank and is asked over loopback, taking turns with the same encode in the asking process.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import layout
import scaling_page
from bench_encode import difference
from given_checkpoint import bundled_tokenizer
from machine import machine
from pack import h3te_module
from rounds import median, run, take_turns
from scaling_model import reduced_bytes
from verdict import Target, Verdict, at_most, rounded
from wide_files import bf16_folder

REQUESTS, SIZES = ("prompt", "keyframes"), (1, 2, 4)
LAYERS, ROUNDS, REPEATS = 4, 2, 3  # rounds, repeats: at most
LIMIT_SECONDS = 3600
READ_LIMIT, SAME, OVERHEAD_LIMIT = 1.01, 2e-2, 1.03
KIND = "bf16, fp16"  # of the folder, in the table of cuts


def bench(rounds: int, host: Path) -> Verdict:
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    options = ("--layers", LAYERS, "--tokenizer", tokenizer)
    rows = {}
    for request in REQUESTS:
        print(f"  {request}, {SIZES} ranks ", end="", flush=True)
        rows[request] = measured(folder, request, options, min(rounds, ROUNDS))
    print("  through a worker", flush=True)
    options = (*options, "--repeats", min(rounds, REPEATS))
    remote = remote_row(run("measure_remote.py", folder, "keyframes", *options, limit=LIMIT_SECONDS))
    keep, width = parts_of(folder)
    figures = rounded({"layers": LAYERS, "width": width, "keep": keep, "ranks": rows, "remote": remote})
    scaling_page.write({"machine": machine(), "figures": figures})
    return Verdict("parallel", lines(rows, remote), targets(figures), figures)


def measured(folder: Path, request: str, options: Sequence, rounds: int) -> dict[str, dict]:
    """{ranks: row}"""
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="parallel_") as kept:
        out = {size: Path(kept) / f"{size}.safetensors" for size in SIZES}
        started = partial(run, "measure_parallel.py", limit=LIMIT_SECONDS)
        cases = {str(size): partial(started, size, folder, request, *options, "--out", out[size]) for size in SIZES}
        found = take_turns(cases, rounds)
        return {str(size): row(found[str(size)]) | {"difference": apart(out[size], out[1])} for size in SIZES}


def apart(ours: Path, one: Path) -> float:
    """Relative L2 of hidden states to those of one process."""
    from safetensors.torch import load_file

    return difference(load_file(ours)["hidden"], load_file(one)["hidden"])


def row(rounds: Sequence[dict]) -> dict:
    """Of one request on so many ranks: seconds of the slowest rank, the rest of the rank that takes most."""
    ranks = [rank for found in rounds for rank in found["ranks"]]
    slowest = [max(found["ranks"], key=lambda rank: rank["seconds"]) for found in rounds]
    parts = {name: statistics.median(rank["parts"].get(name, 0.0) for rank in slowest) for name in slowest[0]["parts"]}
    return {
        "threads": rounds[0]["threads"],
        "tokens": ranks[0]["tokens"],
        "seconds": median(slowest, "seconds"),
        "parts": parts,
        "in_sums": statistics.median(rank["sums"]["seconds"] for rank in slowest),
        "agree_us": statistics.median(rank["agree_seconds"] for rank in slowest) * 1e6,
        "sums": {name: sorted({rank["sums"][name] for rank in ranks}) for name in ("count", "bytes")},
        "bytes_read": max(rank["bytes_read"] for rank in ranks),
        "read_by_all": sum(rank["bytes_read"] for rank in rounds[0]["ranks"]),
        "resident": max(rank["resident"] for rank in ranks),
        "peak": max(rank["peak"] for rank in ranks),
    }


def parts_of(folder: Path) -> tuple[dict[str, int], int]:
    """({ranks: bytes that one of them keeps}, width), by the shapes alone."""
    table, fit = h3te_module("encoder.parallel.cut_table"), h3te_module("encoder.checkpoint.fit")
    config = h3te_module("encoder").load_encoder(folder, tap_layer=LAYERS).config
    shapes = fit.needed_shapes(config, LAYERS)
    weights = table.stored_weights(table.FORMATS[KIND], shapes)
    keep = {str(size): max(table.rank_bytes(weights, shapes, size)) for size in SIZES}
    return keep, config.text.hidden_size


def remote_row(found: Mapping) -> dict:
    """overhead: seconds of a remote encode in which the worker does not compute. Raises RuntimeError for other bits."""
    if not found["equal"]:
        raise RuntimeError(
            "bench parallel: expected the same bits from a worker of one rank, got others. This is an error of the "
            "worker or of the benchmark: please report it."
        )
    local, remote, computed = (statistics.median(found[name]) for name in ("local", "remote", "computed"))
    pairs = zip(found["remote"], found["computed"], strict=True)
    overhead = statistics.median(whole - inside for whole, inside in pairs)
    alone = found["alone"]
    sent = overhead - sum(seconds for name, seconds in alone.items() if not name.endswith("_bytes"))
    return {
        "tokens": found["tokens"], "local": local, "remote": remote, "computed": computed, "overhead": overhead,
        "to_local": remote / local, "overhead_to_local": (local + overhead) / local, "alone": alone, "sending": sent,
    }  # fmt: skip


def targets(figures: Mapping) -> list[Target]:
    found, rows = [], figures["ranks"]
    for size in (n for n in map(str, SIZES) if n != "1"):
        read = max(rows[request][size]["bytes_read"] for request in rows) / figures["keep"][size]
        found.append(at_most(f"{size} ranks: bytes that one reads, to its part of the weights", read, READ_LIMIT))
        for request in rows:
            error = rows[request][size]["difference"]
            found.append(at_most(f"{request}, {size} ranks: relative L2 to one process", error, SAME, ""))
    right = all(as_computed(of, figures["layers"], figures["width"]) for of in rows.values())
    found.append((right, "bytes that ranks add up are those of the formula"))
    remote = figures["remote"]
    what = f"{remote['tokens']} tokens through a worker: all that is not its computing, to the encode here"
    return [*found, at_most(what, remote["overhead_to_local"], OVERHEAD_LIMIT)]


def as_computed(sizes: Mapping[str, dict], layers: int, width: int) -> bool:
    """On each rank in each round; none on one rank."""
    return all(
        of["sums"]["bytes"] == [reduced_bytes(of["tokens"], layers, width) if size != "1" else 0]
        for size, of in sizes.items()
    )


def lines(rows: Mapping[str, Mapping[str, dict]], remote: Mapping) -> list[str]:
    found = [
        f"{'request, ranks x threads':<26}{'tokens':>7}{'seconds':>9}{'vision':>8}{'decoder':>9}{'in sums':>9}"
        f"{'read':>10}{'resident':>10}{'beyond':>9}{'summed':>10}  apart"
    ]
    for request, sizes in rows.items():
        for size, of in sizes.items():
            name, parts = f"{request}, {size} x {of['threads']}", of["parts"]
            sums = of["sums"]["bytes"][0] / 1e6
            found.append(
                f"{name:<26}{of['tokens']:>7}{of['seconds']:>8.2f}s{parts.get('vision', 0.0):>7.2f}s"
                f"{parts['decoder']:>8.2f}s{of['in_sums']:>8.2f}s{of['bytes_read'] / 1e9:>7.2f} GB"
                f"{of['resident'] / 1e9:>7.2f} GB{of['peak'] / 1e9:>6.2f} GB{sums:>7.0f} MB  {of['difference']:.2g}"
            )
    found.append(
        f"{remote['tokens']} tokens: here {remote['local']:.2f} s, through a worker {remote['remote']:.2f} s "
        f"({remote['to_local']:.3f}x), of which it computes {remote['computed']:.2f} s; all else "
        f"{remote['overhead'] * 1e3:.0f} ms"
    )
    return found
