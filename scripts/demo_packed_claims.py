"""The demo's claims about packed files: opened by the real loader, packed in memory, the same by every reader, refused
when broken.

Contract: as demo_claims. `packed_claims` works on the demo weights in other formats, `streamed_claims` on any
checkpoint. Errors are of the demo weights: random numbers in rows of 64 to 512; those of a real file are other numbers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import demo_packed
import demo_requests
import torch
from comfy_client import PromptFailed, ValidationError
from demo_claims import FLOAT32_LIMIT, Claim, direct_encoder, graph_run, relative
from demo_memory_claims import finished, measured, started
from demo_official import official
from demo_requests import KEYFRAMES, TEXT, DemoRequest
from given_checkpoint import Checkpoint
from pack import h3te_module

DEFAULT = "nvfp4_awq"
PARTS_BYTES = "4096"  # demo weights are small: from this size on they are streamed as real ones are
SHORT = {"nvfp4_awq": "nvfp4_awq", "int8_convrot": "int8_convrot", "gguf": "GGUF Q8_0"}
SMALL = replace(KEYFRAMES, width=448, height=256)  # claim 2 encodes them at full size
SHOWN: dict[str, DemoRequest] = {"nvfp4_awq": SMALL, "int8_convrot": TEXT, "gguf": SMALL}
FORMATS = {"nvfp4_awq": "nvfp4 with AWQ scales, int8 embedding", "int8_convrot": "int8 convrot", "gguf": "Q8_0"}
ERROR_LIMITS = {"nvfp4_awq": 0.2, "int8_convrot": 0.015, "gguf": 0.015}  # measured: 0.138, 0.009, 0.007
STAYED_SHARE = 0.25  # of what unpacking everything would add: more than that was unpacked and kept
REFUSALS = {"truncated": "as its header says", "mxfp8": "mxfp8"}


def packed_claims(server, plain: Checkpoint, files: Mapping[str, Path], say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 5. plain: the demo folder; files: `demo_packed.make`'s, made of it."""
    bf16 = h3te_module("encoder").inspect_checkpoint(plain.path).bytes_needed
    exact = _float32(plain)
    for kind, file in files.items():
        say(f"{SHORT[kind]} file: ComfyUI")
        checkpoint = replace(plain, path=file, value=file.name)
        yield _graph_claim(server, kind, checkpoint, bf16)
        yield _error_claim(kind, checkpoint, exact)
    checkpoint = replace(plain, path=files[DEFAULT], value=files[DEFAULT].name)
    say(f"{SHORT[DEFAULT]} file: transformers")
    yield _official_claim(checkpoint)
    say("Broken files")
    with demo_packed.broken(plain.path, files[DEFAULT]) as broken:
        for what, file in broken.items():
            yield _refused_claim(server, what, file)


def _graph_claim(server, kind: str, checkpoint: Checkpoint, bf16: int) -> Claim:
    """Opened by the loader node; the node says the format; the result is that of a direct call."""
    report = h3te_module("encoder").inspect_checkpoint(checkpoint.path)
    request = replace(SHOWN[kind], name=kind)
    outputs, (same, figure) = graph_run(server, checkpoint, request, direct_encoder(checkpoint))
    said = "\n".join(outputs["loader"]["text"])
    named = bool(report.format) and FORMATS[kind] in report.format and report.format in said
    size = f"{report.bytes_needed / 1e6:.1f} MB instead of {bf16 / 1e6:.1f} in bf16 ({report.bytes_needed / bf16:.2f})"
    what = f"{SHORT[kind]} file, opened packed: the node graph equals the encoder called directly"
    figure = f"doctor and node: {report.format or report.problems}; {size}; {figure}"
    return Claim(5, what, same and named and report.bytes_needed < bf16, figure)


def _float32(checkpoint: Checkpoint) -> torch.Tensor:
    """[S, D] of the prompt, computed in float32: what is left is the error of the stored weights."""
    load = h3te_module("encoder").load_encoder
    return load(checkpoint.path, dtype=torch.float32, tokenizer=checkpoint.tokenizer).encode(TEXT.prompt).hidden[0]


def _error_claim(kind: str, checkpoint: Checkpoint, exact: torch.Tensor) -> Claim:
    error, limit = relative(_float32(checkpoint), exact), ERROR_LIMITS[kind]
    what = f"{SHORT[kind]} file: error to the bf16 file, both computed in float32"
    return Claim(5, what, error <= limit, f"{error:.4f} relative (at most {limit}): of random demo weights")


def _official_claim(checkpoint: Checkpoint) -> Claim:
    """The packed linears are right: transformers on the unpacked matrices gives the same."""
    path = official(checkpoint, h3te_module("encoder").SELECTED_LAYER, torch.float32)
    distance = relative(_float32(checkpoint), path.encode(TEXT.prompt).hidden)
    what = f"{SHORT[DEFAULT]} file: hidden_states[50] equal transformers' on the unpacked matrices"
    return Claim(5, what, distance <= FLOAT32_LIMIT, f"float32 relative difference {distance:.1e}")


def start_readers(plain: Checkpoint, files: Mapping[str, Path]) -> dict[str, subprocess.Popen]:
    """Each reader in a process of its own, and the bf16 file beside them; a prompt alone, so that activations do not
    hide the weights. They may run while ComfyUI starts: what is measured is memory."""
    packed = files[DEFAULT]
    return {
        "bf16": started(plain.path, plain.tokenizer, TEXT, "--reader", "read"),
        "mmap": started(packed, plain.tokenizer, TEXT, "--reader", "mmap"),
        "read": started(packed, plain.tokenizer, TEXT, "--reader", "read"),
        "stream": started(packed, plain.tokenizer, TEXT, "--reader", "stream", "--stream-from", PARTS_BYTES),
    }


def reader_claims(runs: Mapping[str, subprocess.Popen]) -> Iterator[Claim]:
    """Claim 5: what `start_readers` measured."""
    figures = {reader: finished(run) for reader, run in runs.items()}
    yield _packed_memory_claim(figures)
    yield _streaming_claim(figures)
    digests = {reader: figures[reader]["digest"] for reader in ("mmap", "read", "stream")}
    same = len(set(digests.values())) == 1
    figure = f"{figures['mmap']['tokens']} tokens, {'bit-equal' if same else f'differ: {digests}'}"
    yield Claim(5, f"{SHORT[DEFAULT]} file: mapped, read and streamed give the same", same, figure)


def _packed_memory_claim(figures: Mapping[str, Mapping]) -> Claim:
    """What is in memory beside activations is as large as the packed weights, before, during and after use."""
    what, bf16, packed = f"{SHORT[DEFAULT]} file: weights stay packed in memory", figures["bf16"], figures["read"]
    unpacked, stored = bf16["weight_bytes"], packed["weight_bytes"]
    figure = f"packed {stored / 1e6:.1f} MB, unpacked {unpacked / 1e6:.1f} MB; "
    if packed["copied"] is None:  # only Linux tells private memory
        peaks = [run["peak_resident"] / 1e6 for run in (packed, bf16)]
        return Claim(5, what, peaks[0] < peaks[1], f"{figure}peak resident {peaks[0]:.1f} MB, bf16 {peaks[1]:.1f} MB")
    grown = [run["peak_private"] - run["copied"] for run in (packed, bf16)]
    passed = packed["copied"] <= 1.1 * stored and grown[0] - grown[1] <= STAYED_SHARE * (unpacked - stored)
    loaded, peak = _pair(packed, bf16, "copied"), _pair(packed, bf16, "peak_private")
    return Claim(5, what, passed, f"{figure}private after loading {loaded}, at the peak of an encode {peak}")


def _pair(packed: Mapping, bf16: Mapping, key: str) -> str:
    return f"{packed[key] / 1e6:.1f} MB (bf16 file {bf16[key] / 1e6:.1f})"


def _streaming_claim(figures: Mapping[str, Mapping]) -> Claim:
    """Streamed weights are in no memory: the peak is below that of the reader that keeps them by most of their size."""
    what, read, stream = (
        f"{SHORT[DEFAULT]} file: streamed layer by layer for small RAM",
        figures["read"],
        figures["stream"],
    )
    if stream["copied"] is None:
        return Claim(5, what, True, f"peak resident {stream['peak_resident'] / 1e6:.1f} MB")
    saved = read["peak_private"] - stream["peak_private"]
    figure = (
        f"peak private {stream['peak_private'] / 1e6:.1f} MB, {saved / 1e6:.1f} MB less than with the weights in memory"
    )
    return Claim(5, what, saved >= 0.75 * read["copied"], figure)


def _refused_claim(server, what: str, file: Path) -> Claim:
    """By the loader node, before the run, in the doctor's words."""
    title = {
        "truncated": "A download that ended early is refused",
        "mxfp8": "A format that is not served is refused by name",
    }
    try:
        server.run(demo_requests.graph(TEXT, file.name), timeout=600)
        said = "it ran"
    except ValidationError as error:
        said = _reason(error)
    except PromptFailed as error:
        said = str(error)
    problems = h3te_module("encoder").inspect_checkpoint(file).problems
    passed = REFUSALS[what] in said and bool(problems) and problems[0] in said
    return Claim(5, title[what], passed, said)


def _reason(error: ValidationError) -> str:
    """What the loader said, without ComfyUI's words around it."""
    found = [entry for node in error.node_errors.values() for entry in node["errors"]]
    return " ".join(entry.get("details") or entry["message"] for entry in found) or str(error)


def streamed_claims(checkpoint: Checkpoint, say: Callable[[str], None]) -> Iterator[Claim]:
    """Claim 5 for a checkpoint of one's own: read layer by layer, with how much memory, and the same result."""
    say("Streamed layer by layer")
    mapped, streamed = (
        measured(checkpoint.path, checkpoint.tokenizer, TEXT, "--reader", r) for r in ("mmap", "stream")
    )
    same, peak = mapped["digest"] == streamed["digest"], streamed["peak_private"] or streamed["peak_resident"]
    figure = (
        f"{'bit-equal' if same else 'differs'}; peak {peak / 1e9:.2f} GB for {streamed['weight_bytes'] / 1e9:.2f} GB"
    )
    yield Claim(5, "Streamed layer by layer for small RAM: equal to mapped", same, figure)
