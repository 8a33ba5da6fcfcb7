"""Reading needed tensors, one at a time, as views of the mapped files.

Contract: `CheckpointReader.fill(slots, names)` assigns each named tensor where it belongs. Nothing is copied: a tensor
is a view of its file, so resident memory is the page cache's. Files are opened at their first tensor and closed after
the pass; `opened` lists them in order. A file that is gone, or whose header is another one than at loading, is a
RuntimeError before any of its tensors is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open

from ..weights import WeightSlots
from .catalog import Catalog
from .header import read_header

logger = logging.getLogger(__name__)


class CheckpointReader:
    def __init__(self, catalog: Catalog):
        self.catalog = catalog
        self.opened: list[Path] = []

    def fill(
        self, slots: WeightSlots, names: Iterable[str], progress: Callable[[int, int, str], None] | None = None
    ) -> None:
        """Assign the named tensors. `progress(done, total, what)` counts bytes; raising in it stops between tensors."""
        entries = {name: self.catalog.entries[name] for name in names}
        total, done = sum(entry.nbytes for entry in entries.values()), 0
        with ExitStack() as stack, torch.inference_mode(False):
            handles: dict[Path, object] = {}
            for name, entry in entries.items():
                if entry.file not in handles:
                    handles[entry.file] = self._open(entry.file, stack)
                slots.assign(name, handles[entry.file].get_tensor(entry.stored_name))
                done += entry.nbytes
                if progress is not None:
                    progress(done, total, "weights")
        logger.info("mapped %d tensors, %.2f GB, from %d files", len(entries), total / 1e9, len(handles))

    def _open(self, file: Path, stack: ExitStack):
        self._check_unchanged(file)
        self.opened.append(file)
        return stack.enter_context(safe_open(file, framework="pt", device="cpu"))

    def _check_unchanged(self, file: Path) -> None:
        """Hours may lie between reading the headers and the first use."""
        promised = {e.stored_name: e for e in self.catalog.entries.values() if e.file == file}
        try:
            tensors = read_header(file).tensors
        except (ValueError, OSError) as error:
            raise RuntimeError(f"{_changed(file)} one that cannot be read ({error}). {_AGAIN}") from error
        other = sorted(name for name, entry in promised.items() if tensors.get(name) != entry)
        if other:
            raise RuntimeError(f"{_changed(file)} {len(other)} other tensors (first: {other[0]}). {_AGAIN}")


_AGAIN = "It was moved or replaced meanwhile: put it back, or load the text encoder again."


def _changed(file: Path) -> str:
    return f"{file.name}: expected the file as it was when the text encoder was loaded, got"
