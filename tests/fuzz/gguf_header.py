"""Fuzz target: the header of a .gguf file, as the doctor and the loader read it (contract: safetensors_header.py)."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from ..tiny_weights import tiny_config
from .accepted import refusal

_KEPT = TemporaryDirectory(prefix="h3te-fuzz-")  # until the process ends
_FOLDER = Path(_KEPT.name)
_FILE = _FOLDER / "e.gguf"
_NUMBERS = (0, 1, 2, 3, 8, 9, 31, 32, 64, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1)


def prepare() -> None:
    import h3te.encoder
    import h3te.encoder.checkpoint.gguf_file
    import h3te.encoder.checkpoint.gguf_reader
    import h3te.encoder.checkpoint.gguf_vision  # noqa: F401


def seeds() -> dict[str, bytes]:
    import gguf_files
    from gguf_plan import Types, plan, text_values

    from ..tiny_weights import shapes

    config, found = tiny_config(), {}
    for family in "AC":
        tensors, _ = plan(config, shapes(config), family, Types())
        few = [tensor for tensor in tensors if "1." in tensor.name and "norm" in tensor.name][:3]
        values = {**text_values(config, family), "numbers": [1] * 70, "tokenizer.ggml.tokens": ["a", "b"]}
        size = gguf_files.write_header(_FILE, few, values)
        found[f"family{family}"] = _FILE.read_bytes() + bytes(size)
    gguf_files.write_header(_FILE, [], {})
    return {**found, "empty": _FILE.read_bytes()}


def mutated(data: bytes, chance: Random) -> bytes:
    """A number of 4 or 8 bytes somewhere in the header, often the length of a text, becomes another."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2))):
        width, kind = chance.choice(((4, "<I"), (8, "<Q")))
        if len(changed) <= 32:
            break
        at = chance.choice(_places(changed)) if chance.random() < 0.7 else chance.randrange(len(changed) - width)
        number = chance.choice(_NUMBERS) % (1 << 8 * width)
        changed[at : at + width] = struct.pack(kind, number)
    return bytes(changed)


def _places(data: bytearray) -> list[int]:
    """Where small whole numbers of 8 bytes stand: lengths, counts, offsets."""
    found = [at for at in range(4, min(len(data) - 8, 4000)) if data[at] and not any(data[at + 2 : at + 8])]
    return found or [4]


def one(data: bytes) -> None:
    from h3te.encoder import inspect_checkpoint
    from h3te.encoder.checkpoint import gguf_file

    gguf_file._outcome.cache_clear()  # a file of the same size, within a tick of the file system's clock
    _FILE.write_bytes(data)
    headers = []
    said = refusal(lambda: headers.append(gguf_file.read_gguf(_FILE)))
    report = inspect_checkpoint(_FILE)
    if said and not report.problems:
        raise AssertionError("the doctor finds nothing wrong in a file that the reader refuses")
    for header in headers:
        for entry in header.tensors.values():
            if entry.offset < 24 or entry.offset + entry.nbytes > len(data):
                raise AssertionError("a tensor outside its file was taken")
