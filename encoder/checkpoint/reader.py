"""Putting a checkpoint's needed weights into their places, in one of three ways that give the same values.

Contract: `CheckpointReader.fill(slots, names)`. "mmap": each tensor is a view of its mapped file, so resident memory is
the page cache's; columns of a weight, which lie apart in it, are read instead. "read": each tensor is read into memory
once; what mapping cannot survive (a network drive that goes away, an old Windows) is then over after loading. "stream":
large weights stay in the file and are read whenever they are needed, then dropped. Files are checked before each pass
(see files.py); raising in `progress` stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from ..progress import READING
from ..weights import WeightSlots
from .catalog import Catalog
from .files import STORED_TYPES, CheckpointFiles, shaped
from .header import TensorEntry
from .rest import Kept, Streamed
from .stored_weight import StoredWeight

logger = logging.getLogger(__name__)

READERS = ("mmap", "read", "stream")
STREAMED_FROM = 1 << 20  # bytes: smaller tensors (norms, biases) are kept
AHEAD_BYTES = 1 << 28  # what the system is asked to have ready while a weight is in use
Told = Callable[[int], None]


class CheckpointReader:
    def __init__(self, catalog: Catalog, weights: Mapping[str, StoredWeight], mode: str = "mmap"):
        if mode not in READERS:
            raise ValueError(
                f"load_encoder: expected reader to be one of {', '.join(READERS)}, got {mode!r}. Use mmap."
            )
        self.catalog, self.weights, self.mode = catalog, weights, mode
        self.files = CheckpointFiles(catalog.files_needed)
        self._order = [name for name, stored in weights.items() if stored.nbytes >= STREAMED_FROM]
        self._place = {name: i for i, name in enumerate(self._order)}

    @property
    def opened(self) -> list[Path]:
        return self.files.opened

    def announce(self, slots: WeightSlots, names: Iterable[str]) -> None:
        """Placeholders in the stored form for the named weights; what was there is dropped."""
        for name in names:
            stored = self.weights[name]
            if stored.packing is not None:
                slots.announce(name, stored.packing)
            else:
                entry = stored.parts["weight"]
                slots.assign(name, torch.empty(entry.shape, dtype=STORED_TYPES[entry.dtype], device="meta"))

    def fill(
        self, slots: WeightSlots, names: Iterable[str], progress: Callable[[int, int, str], None] | None = None
    ) -> None:
        """Put the named weights in their places. `progress(done, total, what)` counts bytes."""
        names = list(names)
        total, done = sum(self.weights[name].nbytes for name in names), 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total, READING)

        maps: dict[Path, torch.Tensor] = {}
        with torch.inference_mode(False):
            for name in names:
                self._put(slots, name, maps, told)
        logger.info("%s %d weights, %.2f GB", self.mode, len(names), total / 1e9)

    def _put(self, slots: WeightSlots, name: str, maps: dict[Path, torch.Tensor], told: Told) -> None:
        stored = self.weights[name]
        if self.mode == "stream" and stored.nbytes >= STREAMED_FROM:
            slots.store(name, self._streamed(name), self._input_scale(stored))
            told(stored.nbytes)
            return
        parts = {part: self._tensor(entry, maps, told) for part, entry in stored.parts.items()}
        if stored.packing is None:
            slots.assign(name, parts["weight"])
        else:
            slots.store(name, Kept(stored, parts), self._input_scale(stored))

    def _tensor(self, entry: TensorEntry, maps: dict[Path, torch.Tensor], told: Told) -> torch.Tensor:
        if self.mode != "mmap" or entry.runs > 1:
            return self.files.read(entry, told)
        if entry.file not in maps:
            maps[entry.file] = self.files.map(entry.file)
        tensor = shaped(maps[entry.file][entry.offset : entry.offset + entry.nbytes], entry)
        told(entry.nbytes)
        return tensor

    def _input_scale(self, stored: StoredWeight) -> torch.Tensor | None:
        return None if stored.input_scale is None else self.files.read(stored.input_scale)

    def _streamed(self, name: str) -> Streamed:
        return Streamed(self.weights[name], self.files, lambda: self.files.expect(self._following(name)))

    def _following(self, name: str) -> list[TensorEntry]:
        """The large parts that are needed after `name`, AHEAD_BYTES of them; the first ones come after the last."""
        found, size = [], 0
        for i in range(1, len(self._order)):
            stored = self.weights[self._order[(self._place[name] + i) % len(self._order)]]
            if size + stored.nbytes > AHEAD_BYTES:
                break
            found += stored.parts.values()
            size += stored.nbytes
        return found
