"""Fuzz target: the header of a .safetensors file, as the doctor, the lists of files and the loader read it.

Contract of every target: `prepare()` imports what it needs; `seeds()` gives valid inputs by name; `one(data)` raises
for a finding alone; `mutated(data, chance)` changes an input as its format is built. No target needs atheris.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ..checkpoint_files import stored, write_sparse
from ..tiny_weights import tiny_config
from .accepted import refusal
from .json_frames import framed, mutated

__all__ = ["mutated", "one", "prepare", "seeds"]

_KEPT = TemporaryDirectory(prefix="h3te-fuzz-")  # until the process ends
_FOLDER = Path(_KEPT.name)
_FILE = _FOLDER / "e.safetensors"


def prepare() -> None:
    import h3te.encoder
    import h3te.encoder.checkpoint.glance
    import h3te.encoder.checkpoint.header  # noqa: F401


def seeds() -> dict[str, bytes]:
    one_tensor = {"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    two = {**one_tensor, "b": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [8, 12]}}
    told = {"__metadata__": {"format": "pt", "config": json.dumps(tiny_config())}, **two}
    found = {
        name: framed(json.dumps(header).encode(), bytes(size))
        for name, header, size in (("empty", {}, 0), ("one", one_tensor, 8), ("two", two, 12), ("told", told, 12))
    }
    return {**found, "layers": _layers()}


def _layers() -> bytes:
    """The names of an encoder's tensors, all of them empty."""
    tensors = {name: (dtype, (0,)) for name, (dtype, _) in stored(tiny_config()).items()}
    tensors = {name: kind for name, kind in tensors.items() if "layers.1." in name or "blocks.1." in name}
    return write_sparse(_FILE, tensors).read_bytes()


def one(data: bytes) -> None:
    from h3te.encoder import inspect_checkpoint
    from h3te.encoder.checkpoint.glance import glance
    from h3te.encoder.checkpoint.header import read_header

    _FILE.write_bytes(data)
    said = refusal(lambda: read_header(_FILE))
    report = inspect_checkpoint(_FILE)
    if said is None:
        _check_inside(read_header(_FILE), len(data))
    elif not report.problems:
        raise AssertionError("the doctor finds nothing wrong in a file that the reader refuses")
    if glance(_FILE) not in (None, report.is_h3):
        raise AssertionError("a glance says other than the inspection")


def _check_inside(header, size: int) -> None:
    """What was taken fills the file: offsets never lead out of it."""
    entries = header.tensors.values()
    if any(entry.offset < 8 or entry.offset + entry.nbytes > size for entry in entries):
        raise AssertionError("a tensor outside its file was taken")
    if header.tensors and 8 + sum(entry.nbytes for entry in entries) > size:
        raise AssertionError("tensors that overlap were taken")
