"""One pass over the weights for one request or several: vision, features into tokens, decoder.

Contract: `EncodePass(tree, config, requests, ...)` checks that pads and pictures agree, before anything is computed;
`run(progress)` gives the hidden states [S, D] of each request, to the bit what it would be alone. All pictures of all
requests go through the tower together, each modality of each request as one call ("official") or each reference as one
("per_reference").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from .config import EncoderConfig
from .decoder import EmbeddedSequence
from .pixels import Patches
from .placement import Block, Placement, find_blocks, position_ids
from .progress import Progress, Steps
from .rope import text_rotary
from .token_inputs import grid_list
from .vision import Grid, VisionFeatures, join_features

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
    def __init__(
        self,
        tree: nn.Module,
        config: EncoderConfig,
        requests: Sequence[Request],
        device: torch.device,
        dtype: torch.dtype,
        vision_packing: str,
    ):
        if vision_packing not in VISION_PACKINGS:
            raise ValueError(
                f"Encoder: expected vision_packing to be one of {', '.join(VISION_PACKINGS)}, got {vision_packing!r}. "
                "Use official."
            )
        self.tree, self.config, self.requests = tree, config, requests
        self.device, self.dtype = device, dtype
        self.apart = vision_packing == "per_reference"
        merge = config.vision.spatial_merge_size if config.vision else 1
        self.blocks = [find_blocks(r.ids, r.grids["image"], r.grids["video"], merge) for r in requests]

    def run(self, progress: Progress | None) -> list[torch.Tensor]:
        decoder, depth = self.tree.language_model, self._vision_depth()
        steps = Steps(progress, depth + len(decoder.layers))
        features = self._see(steps) if depth else [{} for _ in self.requests]
        sequences = [
            self._embedded(request, blocks, seen)
            for request, blocks, seen in zip(self.requests, self.blocks, features, strict=True)
        ]
        return decoder.decode(sequences, lambda i: steps(f"layer {i + 1} of {len(decoder.layers)}"))

    def _vision_depth(self) -> int:
        return self.config.vision.depth if any(request.sees for request in self.requests) else 0

    def _see(self, steps: Steps) -> list[dict[str, VisionFeatures]]:
        """The features of each request by modality."""
        tower = self.tree.visual
        owners, calls = [], []
        for number, request in enumerate(self.requests):
            for modality, patches in request.patches.items():
                if patches is not None:
                    parts = self._calls(patches, request.grids[modality])
                    owners += [(number, modality)] * len(parts)
                    calls += parts
        seen = tower.see(calls, lambda i: steps(f"vision block {i + 1} of {len(tower.blocks)}"))
        found: list[dict[str, list[VisionFeatures]]] = [{} for _ in self.requests]
        for (number, modality), features in zip(owners, seen, strict=True):
            found[number].setdefault(modality, []).append(features)
        return [{modality: join_features(each) for modality, each in request.items()} for request in found]

    def _calls(self, patches: Patches, grids: list[Grid]) -> list[tuple[torch.Tensor, list[Grid]]]:
        pixels = patches.pixel_values.to(device=self.device, dtype=self.dtype)
        if not self.apart:
            return [(pixels, grids)]
        sizes = [t * h * w for t, h, w in grids]
        return [(part, [grid]) for part, grid in zip(pixels.split(sizes), grids, strict=True)]

    def _embedded(
        self, request: Request, blocks: list[Block], features: Mapping[str, VisionFeatures]
    ) -> EmbeddedSequence:
        placements = [Placement(b.start, b.stop, b.offset, features[b.modality]) for b in blocks]
        hidden = self.tree.language_model.embed_tokens(request.ids, self.device, self.dtype)  # [S, D]
        for place in placements:
            hidden[place.start : place.stop] = place.rows(place.features.merged)
        positions = position_ids(len(request.ids), blocks)
        return EmbeddedSequence(hidden, text_rotary(positions, self.config.text, self.device, self.dtype), placements)
