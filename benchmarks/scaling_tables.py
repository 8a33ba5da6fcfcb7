"""The computed tables of docs/scaling.md, as Markdown: from the released sizes and what is assumed of GPUs and links.

Contract: `tables(machine)` -> {name: Markdown}; nothing in it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pack import h3te_module
from scaling_model import (
    CLEARLY,
    LAYERS,
    MOST_TOKENS,
    TASKS,
    Machine,
    Work,
    pays_until,
    reduced_bytes,
    released,
    sum_bytes,
)

RANKS = (2, 4, 8)
TOKENS = (312, 2344, 8000)
FORMATS = ("nvfp4_awq", "bf16, fp16")
NETWORKS, ACHIEVED = (1, 10, 100), 0.94  # Gbit/s, and what of it carries bodies: Ethernet, IP and TCP take the rest
PATCH_WIDTH = 1536
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B"))


@lru_cache(maxsize=1)
def weights() -> dict[str, dict[int, float]]:
    """{format: {ranks: bytes that each keeps}}"""
    table, fit = h3te_module("encoder.parallel.cut_table"), h3te_module("encoder.checkpoint.fit")
    shapes = fit.needed_shapes(released(), LAYERS)
    stored = {name: table.stored_weights(table.FORMATS[name], shapes) for name in FORMATS}
    return {
        name: {size: max(table.rank_bytes(of, shapes, size)) for size in (1, *RANKS)} for name, of in stored.items()
    }


def tables(machine: Machine) -> dict[str, str]:
    return {
        "assumed": assumed(machine),
        "communication": communication(),
        "time": time_table(machine),
        "streaming": streaming(machine),
        "network": network(machine),
    }


def assumed(machine: Machine) -> str:
    links = "; ".join(
        f"{link.name}: {link.gbytes:g} GB/s in each direction kept up by an all-reduce, {link.step * 1e6:g} us a step"
        for link in machine.links
    )
    return (
        f"Assumed: {machine.tflops:g} TFLOP/s of bf16 products achieved by each GPU, {machine.memory:g} GB/s of its "
        f"memory, {machine.stream:g} GB/s from pinned RAM; {links}; {machine.agree * 1e6:g} us for the ranks of a "
        "worker to agree before each step and each sum."
    )


def communication() -> str:
    over = " / ".join(map(str, RANKS))
    rows = [
        (
            f"{tokens:,}", size_of(sum_bytes(tokens)), size_of(2 * sum_bytes(tokens)), size_of(reduced_bytes(tokens)),
            " / ".join(size_of(2 * (n - 1) / n * reduced_bytes(tokens)) for n in RANKS),
        )
        for tokens in TOKENS
    ]  # fmt: skip
    return markdown(
        ("tokens", "one sum", "a layer", f"an encode, {2 * LAYERS + 1} sums", f"sent by each of {over}"), rows
    )


def time_table(machine: Machine) -> str:
    whole = weights()["bf16, fp16"]
    rows = []
    for name, work in TASKS.items():
        alone = f"{machine.whole(work, whole[1]):.2f} s"
        for link in machine.links:
            shared = (
                f"{machine.parallel(work, whole[1], link, n):.2f} s ({machine.sums(work, link, n):.2f} s)"
                for n in RANKS
            )
            rows.append((f"{name}, {work.tokens:,} tokens", link.name, alone, *shared))
    rows.append(("weights of each in bf16", "", *(size_of(size) for size in whole.values())))
    return markdown(("request", "link", "1 GPU that holds all", *(f"{n} GPUs (sums)" for n in RANKS)), rows)


def streaming(machine: Machine) -> str:
    """One GPU that copies weights while it computes, against several that hold them."""
    rows = []
    for kind in FORMATS:
        whole = weights()[kind][1]
        for link in machine.links:
            for n in RANKS[:2]:
                until = pays_until(machine, whole, link, n)
                rows.append(
                    (
                        kind, f"{n} x {size_of(weights()[kind][n])}", link.name, size_of(whole),
                        *(_against(machine, work, whole, link, n) for work in TASKS.values()), _until(until),
                    )
                )  # fmt: skip
    names = (f"{name}: streamed, shared" for name in TASKS)
    return markdown(
        ("format", "GPUs and weights", "link", "copied", *names, f"shared is {CLEARLY:.0%} faster up to"), rows
    )


def _against(machine: Machine, work: Work, whole: float, link, ranks: int) -> str:
    return f"{machine.streamed(work, whole):.2f} s, {machine.parallel(work, whole, link, ranks):.2f} s"


def _until(tokens: int) -> str:
    return "always" if tokens >= MOST_TOKENS else f"{round(tokens, -2):,} tokens of text"


@lru_cache(maxsize=8)
def body_bytes(work: Work) -> tuple[int, int]:
    """Of the request and of the answer, as the protocol makes them."""
    import torch

    protocol = h3te_module("encoder.parallel.protocol")
    seen = {}
    if work.patches:
        grids = torch.ones(len(work.frames), 3, dtype=torch.int64)
        pixels = torch.empty(work.patches, PATCH_WIDTH, dtype=torch.bfloat16)
        seen = {"pixel_values": pixels, "image_grid_thw": grids}
    ids = torch.zeros(work.tokens, dtype=torch.int64)
    request = protocol.EncodeRequest(ids, "0" * 64, "bfloat16", LAYERS, **seen)
    hidden = torch.empty(work.tokens, released().text.hidden_size, dtype=torch.bfloat16)
    return tuple(sum(piece.nbytes for piece in of.pieces()) for of in (request, protocol.EncodeReply(hidden, ids)))


def network(machine: Machine) -> str:
    rows = []
    for name, work in TASKS.items():
        there, back = body_bytes(work)
        computing = machine.whole(work, weights()["bf16, fp16"][1])
        carried = (_seconds((there + back) * 8 / (speed * 1e9 * ACHIEVED)) for speed in NETWORKS)
        sizes = (f"{work.tokens:,}", f"{work.patches:,}", size_of(there), size_of(back))
        rows.append((name, *sizes, *carried, _seconds(computing)))
    speeds = (f"{speed} Gbit/s" for speed in NETWORKS)
    return markdown(("task", "tokens", "patches", "there", "back", *speeds, "1 GPU computes"), rows)


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows))


def size_of(count: float) -> str:
    return next(f"{count / unit:.3g} {name}" for unit, name in UNITS if count >= unit or name == "B")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
