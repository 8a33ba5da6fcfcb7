"""Vision features of references that are asked for one by one: from the store, or from the tower.

Contract: a reference is one grid: a picture, or all temporal steps of a video, in one call of the tower, so that its
neighbours change none of its bits. `ReferenceFeatures` takes the vision blocks that a pass computes with, looks each
reference up once, and knows what the tower has to see; `see` gives the features of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .cache.prefixes import PrefixStore, features_bytes
from .past import at_rest
from .pixels import Patches
from .placement import Block
from .token_inputs import grid_list
from .vision import Grid, VisionFeatures, VisionTower


@dataclass(frozen=True, eq=False)
class Reference:
    """key: what decides its features. rows: its patches. offset: of its first feature among its modality's."""

    key: Hashable
    patches: Patches
    rows: slice
    grid: Grid
    offset: int

    @property
    def pixel_values(self) -> torch.Tensor:
        return self.patches.pixel_values[self.rows]


def references_of(
    patches: Mapping[str, Patches | None],
    digests: Mapping[str, Sequence[bytes]],
    blocks: Sequence[Block],
    identity: Hashable,
    merged: int,
) -> dict[Block, Reference]:
    """The reference of each block. merged: patches of one feature (4)."""
    found = {}
    for modality, given in patches.items():
        if given is None:
            continue
        waiting = iter([block for block in blocks if block.modality == modality])
        row, step, named = 0, 0, digests.get(modality, ())
        for grid in grid_list(given):
            stop = row + grid[0] * grid[1] * grid[2]
            key = (identity, grid, tuple(named[step : step + grid[0]]))
            reference = Reference(key, given, slice(row, stop), grid, row // merged)
            found |= {next(waiting): reference for _ in range(grid[0])}
            row, step = stop, step + grid[0]
    return found


class ReferenceFeatures:
    def __init__(self, asked: Sequence[Sequence[Reference]], store: PrefixStore):
        """asked: of each request the references of the blocks that are computed, one entry a block."""
        self.known: dict[Hashable, VisionFeatures] = {}
        self.unseen: dict[Hashable, Reference] = {}
        self.kept: dict[Hashable, VisionFeatures] = {}
        self.seen_before = [self._look_up_all(each, store) for each in asked]

    def _look_up_all(self, references: Sequence[Reference], store: PrefixStore) -> int:
        """How many of these blocks somebody has asked for before."""
        known = {reference: self._look_up(reference, store) for reference in dict.fromkeys(references)}
        return sum(known[reference] for reference in references)

    def _look_up(self, reference: Reference, store: PrefixStore) -> bool:
        key = reference.key
        if key in self.known or key in self.unseen:
            return True
        features = store.features(key)
        if features is None:
            self.unseen[key] = reference
        else:
            self.known[key] = features
        return features is not None

    def see(
        self,
        tower: VisionTower,
        device: torch.device,
        dtype: torch.dtype,
        on_block: Callable[[int], None],
        lend_once: bool,
        room: int,
    ) -> dict[Hashable, VisionFeatures]:
        """The features of every reference on the device; new ones are kept on the CPU while they fit into `room`."""
        found = {key: _moved(features, device) for key, features in self.known.items()}
        if self.unseen:
            calls: list[tuple[torch.Tensor, Sequence[Grid]]] = [
                (r.pixel_values.to(device=device, dtype=dtype), [r.grid]) for r in self.unseen.values()
            ]
            found |= zip(self.unseen, tower.see(calls, on_block, lend_once), strict=True)
        self.kept = {}
        for key in self.unseen:
            room -= features_bytes(found[key])
            if room >= 0:
                levels = tuple(at_rest(level) for level in found[key].deepstack)
                self.kept[key] = VisionFeatures(at_rest(found[key].merged), levels)
        return found


def _moved(features: VisionFeatures, device: torch.device) -> VisionFeatures:
    return VisionFeatures(features.merged.to(device), tuple(level.to(device) for level in features.deepstack))
