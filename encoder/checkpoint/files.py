"""Bytes of checkpoint files as tensors: mapped, or read into memory, from files that must be as they were.

Contract: a file is identified by device, inode, size and modification time when its checkpoint is opened; every pass of
reading checks that first, and a file that is gone or another one is a RuntimeError before a byte of it is used. Mapped
tensors are views of the file: nothing is copied, and no handle stays open. What the system cannot guard against is a
mapped file that is cut short in place while it is in use: that ends the process, on every system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from .header import TensorEntry

STORED_TYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I8": torch.int8, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
BLOCK_BYTES = 1 << 26  # between two of these, progress is told and Stop is heard
_AGAIN = "It was moved or replaced meanwhile: put it back, or load the text encoder again."


@dataclass(frozen=True)
class FileIdentity:
    device: int
    inode: int
    size: int
    modified: int  # nanoseconds

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


class CheckpointFiles:
    """The files of one checkpoint. `opened` lists them in the order of their first use; `bytes_read` counts what was
    read of tensors, mapped views aside."""

    def __init__(self, files: Iterable[Path]):
        self._identities = {file: FileIdentity.of(file.stat()) for file in files}
        self.opened: list[Path] = []
        self.bytes_read = 0

    def check(self, file: Path) -> None:
        """Raise RuntimeError unless `file` is the one that was there when the checkpoint was opened."""
        start = f"{file.name}: expected the file as it was when the text encoder was loaded, got"
        try:
            found = FileIdentity.of(file.stat())
        except OSError as error:
            raise RuntimeError(f"{start} none ({error.strerror}). {_AGAIN}") from error
        known = self._identities[file]
        if found != known:
            what = (
                f"{found.size:,} bytes instead of {known.size:,}"
                if found.size != known.size
                else "another or newer one"
            )
            raise RuntimeError(f"{start} {what}. {_AGAIN}")
        if file not in self.opened:
            self.opened.append(file)

    def map(self, file: Path) -> torch.Tensor:
        """The whole file, mapped: uint8 [size]."""
        self.check(file)
        size = self._identities[file].size
        try:
            storage = torch.UntypedStorage.from_file(str(file), False, size)
        except UnicodeEncodeError as error:
            raise RuntimeError(
                f"{file.name!a}: expected a file name that is text, got bytes of another encoding. Rename the "
                "file, or choose the reader read."
            ) from error
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def read(self, entry: TensorEntry, progress: Callable[[int], None] | None = None) -> torch.Tensor:
        """One tensor, read into memory of its own. `progress(bytes)` is called after each block."""
        self.check(entry.file)
        raw = torch.empty(entry.nbytes, dtype=torch.uint8)
        told = 0
        with entry.file.open("rb", buffering=0) as file:
            for place, block in _blocks(entry, memoryview(raw.numpy())):
                file.seek(place)
                _read_into(file, block, entry)
                self.bytes_read += len(block)
                told += len(block)
                if progress is not None and told >= BLOCK_BYTES:
                    progress(told)
                    told = 0
        if progress is not None and told:
            progress(told)
        return shaped(raw, entry)

    def read_rows(self, entry: TensorEntry, ids: torch.Tensor, count: int) -> torch.Tensor:
        """The rows `ids` (int64 [n]) of a table of `count`, in that order [n, width]; only their bytes are read."""
        self.check(entry.file)
        width = entry.nbytes // count
        raw = torch.empty(len(ids) * width, dtype=torch.uint8)
        view = memoryview(raw.numpy())
        with entry.file.open("rb", buffering=0) as file:
            for i, row in enumerate(ids.tolist()):
                file.seek(entry.offset + row * width)
                _read_into(file, view[i * width : (i + 1) * width], entry)
                self.bytes_read += width
        return raw.view(STORED_TYPES.get(entry.dtype, torch.uint8)).view(len(ids), -1)

    def expect(self, entries: Iterable[TensorEntry]) -> None:
        """Tell the system which bytes are wanted next, where it can be told. A hint: what cannot be opened is left to
        the reading that follows, which says what is wrong."""
        advise = getattr(os, "posix_fadvise", None)
        if advise is None:
            return
        for entry in (entry for entry in entries if entry.runs == 1):
            with suppress(OSError), entry.file.open("rb", buffering=0) as file:
                advise(file.fileno(), entry.offset, entry.nbytes, os.POSIX_FADV_WILLNEED)


def _blocks(entry: TensorEntry, view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(place in the file, where it goes) of each block of at most BLOCK_BYTES."""
    width = entry.nbytes // entry.runs
    for i in range(entry.runs):
        for start in range(0, width, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, width)
            yield entry.offset + i * entry.step + start, view[i * width + start : i * width + stop]


def _read_into(file, view: memoryview, entry: TensorEntry) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise RuntimeError(
                f"{entry.file.name}: expected {len(view):,} more bytes for {entry.stored_name}, got {done:,}. {_AGAIN}"
            )
        done += count


def shaped(raw: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Bytes as the tensor that they are; packed types (GGUF's) stay flat bytes, whose rows the packing knows."""
    dtype = STORED_TYPES.get(entry.dtype)
    if dtype is None:
        return raw
    if raw.storage_offset() % dtype.itemsize:  # views need aligned bytes; files made by hand may have others
        raw = raw.clone()
    return raw.view(dtype).view(entry.shape) if prod(entry.shape) else torch.empty(entry.shape, dtype=dtype)
