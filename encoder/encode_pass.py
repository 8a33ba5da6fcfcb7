"""One pass over the weights for one request or several: vision, features into tokens, decoder.

Contract: `EncodePass(tree, config, requests, ...)` checks that pads and pictures agree, before anything is computed;
`run(progress)` gives the hidden states [S, D] of each request, to the bit what it would be alone. All pictures of all
requests go through the tower together, each modality of each request as one call ("official") or each reference as one
("per_reference"); requests that hold the very same `Patches` share the calls and the features. With `lend_once` a
weight that several requests use is borrowed and unpacked once for all of them (loans.py): faster, and a whole layer's
matrices are there together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from .config import EncoderConfig
from .decoder import EmbeddedSequence
from .pixels import Patches
from .placement import Block, Placement, find_blocks, position_ids
from .progress import LAYER, VISION_BLOCK, Progress, Steps, step_text
from .rope import text_rotary
from .token_inputs import grid_list
from .vision import Grid, VisionFeatures, join_features

if TYPE_CHECKING:
    from .model import ReleasedTree

VISION_PACKINGS = ("official", "per_reference")


@dataclass(frozen=True)
class Request:
    """ids int64 [S] on the CPU; patches of each modality ("image", "video"), None for none."""

    ids: torch.Tensor
    patches: Mapping[str, Patches | None]

    @cached_property
    def grids(self) -> dict[str, list[Grid]]:
        return {modality: grid_list(patches) for modality, patches in self.patches.items()}

    @property
    def sees(self) -> bool:
        return any(self.grids.values())


class EncodePass:
    needs_weights = True

    def __init__(
        self,
        tree: ReleasedTree,
        config: EncoderConfig,
        requests: Sequence[Request],
        device: torch.device,
        dtype: torch.dtype,
        vision_packing: str,
        lend_once: bool = True,
    ):
        if vision_packing not in VISION_PACKINGS:
            raise ValueError(
                f"Encoder: expected vision_packing to be one of {', '.join(VISION_PACKINGS)}, got {vision_packing!r}. "
                "Use official."
            )
        self.tree, self.config, self.requests = tree, config, requests
        self.device, self.dtype = device, dtype
        self.apart = vision_packing == "per_reference"
        self.lend_once = lend_once and len(requests) > 1
        merge = config.vision.spatial_merge_size if config.vision else 1
        self.blocks = [find_blocks(r.ids, r.grids["image"], r.grids["video"], merge) for r in requests]
        self.reused = [0] * len(requests)  # tokens of each request whose layers are not computed for it
        self.seen_before = [0] * len(requests)  # vision blocks of each whose features are not computed for it

    def keep(self) -> None:
        """After a run whose results are good: keep what later passes may reuse. This pass reuses nothing."""

    def run(self, progress: Progress | None) -> list[torch.Tensor]:
        decoder, depth = self.tree.language_model, self._vision_depth()
        steps = Steps(progress, depth + len(decoder.layers))
        sequences = self._sequences(self._see(steps) if depth else {})
        return decoder.decode(
            sequences, lambda i: steps(step_text(LAYER, i, len(decoder.layers))), lend_once=self.lend_once
        )

    def _vision_depth(self) -> int:
        return self.config.vision.depth if any(request.sees for request in self.requests) else 0

    def _see(self, steps: Steps) -> dict[int, VisionFeatures]:
        """The features of each `Patches`, by its id; the requests hold it, so that no other takes that id."""
        tower = self.tree.visual
        given = {id(patches): patches for request in self.requests for patches in request.patches.values() if patches}
        grids = {owner: self._call_grids(patches) for owner, patches in given.items()}
        seen = deque(
            tower.see(
                [call for owner, patches in given.items() for call in self._calls(patches, grids[owner])],
                lambda i: steps(step_text(VISION_BLOCK, i, len(tower.blocks))),
                lend_once=self.lend_once,
            )
        )
        return {owner: join_features([seen.popleft() for _ in grids[owner]]) for owner in given}

    def _call_grids(self, patches: Patches) -> list[list[Grid]]:
        """The grids of each call of the tower."""
        grids = grid_list(patches)
        return [[grid] for grid in grids] if self.apart else [grids]

    def _calls(self, patches: Patches, grids: list[list[Grid]]) -> Iterator[tuple[torch.Tensor, list[Grid]]]:
        pixels = patches.pixel_values.to(device=self.device, dtype=self.dtype)
        return zip(pixels.split([sum(t * h * w for t, h, w in call) for call in grids]), grids, strict=True)

    def _sequences(self, seen: Mapping[int, VisionFeatures]) -> list[EmbeddedSequence]:
        return [
            self._embedded(request, blocks, {m: seen[id(p)] for m, p in request.patches.items() if p})
            for request, blocks in zip(self.requests, self.blocks, strict=True)
        ]

    def _embedded(
        self, request: Request, blocks: list[Block], features: Mapping[str, VisionFeatures]
    ) -> EmbeddedSequence:
        hidden = self.tree.language_model.embed_tokens(request.ids, self.device, self.dtype)  # [S, D]
        placements = []
        for block in blocks:
            seen = features[block.modality]
            place = Placement(block.start, block.stop, block.offset, seen.deepstack)
            hidden[place.start : place.stop] = place.rows(seen.merged)
            placements.append(place)
        positions = position_ids(len(request.ids), blocks)
        return EmbeddedSequence(hidden, text_rotary(positions, self.config.text, self.device, self.dtype), placements)
