"""What ranks do in tests: each function runs on every process of the pool, with the group of the first `size` of them.

Contract: `job(group, **arguments) -> {name: tensor}`; arguments are what JSON can say. Outside the group a job answers
with nothing, having asked the same of its encoder.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch
from h3te.encoder import build_encoder, load_encoder
from h3te.encoder.cache.prefixes import PrefixStore, PrefixUse
from h3te.encoder.checkpoint import reader as reading
from h3te.encoder.parallel import TensorParallel
from h3te.encoder.presentation import present_each
from h3te.encoder.tokens import H3Tokenizer
from h3te_tests.parallel.requests import EDITED, PROMPTS, REQUESTS
from h3te_tests.tiny_weights import TAP_LAYER, tiny_weights

reading.STREAMED_FROM = 4096  # tiny tensors are large ones here
Tensors = dict[str, torch.Tensor]


@lru_cache(maxsize=1)
def tokenizer(folder: str) -> H3Tokenizer:
    return H3Tokenizer.from_folder(folder)


def opened(group, path: str, dtype: str = "float32", **options):
    """The encoder of this rank."""
    folder = os.environ["H3TE_TEST_TOKENIZER"]
    given = {"tap_layer": TAP_LAYER, "tokenizer": tokenizer(folder), "dtype": getattr(torch, dtype)}
    return load_encoder(path, parallel=TensorParallel.of(group), **given, **options)


def built(group, config: dict, dtype: str = "float32"):
    encoder = build_encoder(
        config, dtype=getattr(torch, dtype), tap_layer=TAP_LAYER, parallel=TensorParallel.of(group),
        tokenizer=tokenizer(os.environ["H3TE_TEST_TOKENIZER"]),
    )  # fmt: skip
    encoder.load_weights(tiny_weights(config))
    return encoder


def encode(group, requests: list[str], path: str, dtype: str = "float32", reader: str = "mmap", **options) -> Tensors:
    """{request: hidden}"""
    encoder = opened(group, path, dtype, reader=reader)
    return encoded(encoder, requests, **options)


def encoded(encoder, requests: list[str], **options) -> Tensors:
    if not encoder.parallel.is_member:
        return {}
    return {name: encoder.encode(*REQUESTS[name], **options).hidden[0] for name in requests}


def encode_given(group, requests: list[str], config: dict, dtype: str = "float32") -> Tensors:
    """As `encode`, with weights given by `load_weights`."""
    return encoded(built(group, config, dtype), requests)


def encode_list(group, path: str, lend_once: bool) -> Tensors:
    """Several prompts with the same references in one pass."""
    encoder = opened(group, path)
    if not encoder.parallel.is_member:
        return {}
    each = encoder.encode_presentations(present_each(PROMPTS, REQUESTS["both"][1]), lend_once=lend_once)
    return {str(i): done.hidden[0] for i, done in enumerate(each)}


def encode_edits(group, path: str, budget: int, dtype: str = "float32") -> Tensors:
    """The edits, one after the other, with a prefix store of `budget` bytes; "N.reused" counts tokens."""
    encoder, kept = opened(group, path, dtype), PrefixStore(lambda: budget)
    found: Tensors = {}
    for i, (prompt, given) in enumerate(EDITED if encoder.parallel.is_member else ()):
        done = encoder.encode(prompt, given, prefixes=PrefixUse(kept, "one"))
        assert kept.nbytes <= budget
        found |= {f"{i}": done.hidden[0], f"{i}.reused": torch.tensor([done.reused, done.seen_before])}
    return found


def encode_between_devices(group, path: str) -> Tensors:
    """Before, and after the weights were loaded to the device, moved to another (without memory) and offloaded."""
    encoder = opened(group, path)
    found = encoded(encoder, ["pictures"])
    for _ in range(2):
        encoder.load_to_device()
        encoder.to("meta")
        encoder.offload_to_cpu()
    assert encoder.is_loaded == encoder.parallel.is_member
    return found | {f"again {name}": hidden for name, hidden in encoded(encoder, ["pictures"]).items()}


def read_bytes(group, path: str) -> Tensors:
    """What this rank read of the weights: by its own count, by the system's, and what its weights are."""
    encoder = opened(group, path, reader="read")
    if not encoder.parallel.is_member:
        return {}
    before = system_count()
    encoder.materialise()
    counts = encoder.source.files.bytes_read, system_count() - before, encoder.weight_bytes
    return {"counts": torch.tensor(counts)}


def system_count() -> int:
    """Bytes that this process asked the system for, where it says (Linux), else 0."""
    path = Path("/proc/self/io")
    return int(path.read_text().split("rchar:")[1].split()[0]) if path.exists() else 0


def outside(group, path: str) -> Tensors:
    """What an encoder is: members, weights, bytes, layers."""
    encoder = opened(group, path)
    encoder.load_to_device()
    facts = encoder.parallel.is_member, encoder.is_loaded, encoder.weight_bytes, len(list(encoder.parameters()))
    return {"facts": torch.tensor([int(fact) for fact in (*facts, encoder.tp_size)])}


def encode_outside(group, path: str) -> Tensors:
    """Only those outside encode."""
    encoder = opened(group, path)
    if not encoder.parallel.is_member:
        encoder.encode("a fox")
    return {}


def stop_together(group, path: str, at: int) -> Tensors:
    """Every rank stops after `at` steps; then the encoder serves again."""

    class Stop(Exception):
        pass

    def progress(done: int, total: int, what: str) -> None:
        if done == at:
            raise Stop

    encoder = opened(group, path)
    if not encoder.parallel.is_member:
        return {}
    with suppress(Stop):
        encoder.encode(*REQUESTS["pictures"], progress=progress)
    return encoded(encoder, ["pictures"])


def spoilt(group, config: dict, rank: int) -> Tensors:
    """One rank's weights hold a NaN: every rank says where."""
    parallel = TensorParallel.of(group)
    encoder = built(group, config)
    if parallel.rank == rank:
        encoder.slots.get("model.language_model.layers.2.mlp.down_proj.weight")[0, 0] = float("nan")
    if parallel.is_member:
        encoder.encode("a fox")
    return {}


def spoilt_vision(group, path: str, rank: int) -> Tensors:
    """One rank's copy of a tower's weight, which every rank has whole, holds a NaN."""
    encoder = opened(group, path, reader="read")
    if not encoder.parallel.is_member:
        return {}
    encoder.materialise()
    if encoder.parallel.rank == rank:
        encoder.slots.get("model.visual.blocks.1.mlp.linear_fc1.weight")[0, 0] = float("nan")
    return encoded(encoder, ["pictures"])


def silent(group, rank: int) -> Tensors:
    """One rank never comes to the sum."""
    parallel = TensorParallel.of(group)
    if parallel.rank != rank and parallel.is_member:
        parallel.sum(torch.ones(4))
    if parallel.rank == rank:
        time.sleep(3600)
    return {}
