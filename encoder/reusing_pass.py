"""A pass over the weights that computes only what no request before it has left behind.

Contract: as EncodePass, with `PrefixUse`: of each request the rows behind its longest prefix that is kept, or that
another request of this pass has too. Features are per reference. `run` gives the hidden states of whole requests,
equal to those of an EncodePass in mathematics; last bits depend on how many rows a product has. `keep()` puts what was
new into the store, after results were found good: an error or Stop before it leaves the store as it was. Weights are
needed only when something is left to compute (`needs_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from .cache.content import block_digests, token_keys
from .cache.prefix_tree import Branch, chain
from .cache.prefixes import Node, PrefixUse, kept_bytes, pass_identity, pinned_bytes
from .config import EncoderConfig
from .decoder import EmbeddedSequence
from .encode_pass import EncodePass, Request
from .past import Past, at_rest
from .placement import Placement, position_ids
from .progress import LAYER, VISION_BLOCK, Progress, Steps, step_text
from .reference_features import Reference, ReferenceFeatures, references_of
from .rope import text_rotary
from .segments import Segment, Whole, plan_segments, share_room
from .vision import VisionFeatures

if TYPE_CHECKING:
    from .model import ReleasedTree


class ReusingPass(EncodePass):
    def __init__(
        self,
        tree: ReleasedTree,
        config: EncoderConfig,
        requests: Sequence[Request],
        device: torch.device,
        dtype: torch.dtype,
        prefixes: PrefixUse,
        lend_once: bool = True,
    ):
        super().__init__(tree, config, requests, device, dtype, "per_reference", lend_once)
        self.store = prefixes.store
        self.identity = pass_identity(prefixes, dtype, len(tree.language_model.layers))
        self._mark = self.store.open()
        digests = [{m: block_digests(p) for m, p in request.patches.items() if p} for request in requests]
        keys = [token_keys(r.ids, self.blocks[i], digests[i]) for i, r in enumerate(requests)]
        found = [self.store.find(self.identity, own) for own in keys]
        plan = plan_segments(keys, self.blocks, found)
        self.segments, self.wholes = plan.segments, plan.wholes
        self.reused = [whole.reused for whole in plan.wholes]
        self._look_up_references(digests)
        self._room = self._share_room()
        self._computed: dict[Segment, tuple[torch.Tensor, Past]] = {}

    def _look_up_references(self, digests: Sequence[Mapping[str, Sequence[bytes]]]) -> None:
        """Those of blocks that are computed; the others are in use too, though the prefix stands for them."""
        merged = self.config.vision.spatial_merge_size**2 if self.config.vision else 1
        computed = {segment.request: segment for segment in self.segments}
        self._references: list[list[Reference]] = []  # of each request, one a block that is computed
        for i, (request, of, blocks) in enumerate(zip(self.requests, digests, self.blocks, strict=True)):
            found = references_of(request.patches, of, blocks, self.identity, merged)
            asked = computed[i].blocks if i in computed else ()
            self.store.touch(found[block].key for block in blocks if block not in asked)
            self._references.append([found[block] for block in asked])
        self.features = ReferenceFeatures(self._references, self.store)
        self.seen_before = self.features.seen_before

    def _share_room(self) -> int:
        """How much of each segment is kept beside what this pass stands on; returns the bytes left for features."""
        nodes = [branch for whole in self.wholes for branch, _ in whole.parts if isinstance(branch, Node)]
        for node in nodes:
            self.store.use(node)
        room = max(0, self.store.budget() - pinned_bytes(nodes))
        row_bytes = kept_bytes(self.config.text, 1, self.dtype, len(self.tree.language_model.layers))
        return share_room(self.segments, self.blocks, room, row_bytes)

    @property
    def needs_weights(self) -> bool:
        return bool(self.segments)

    def run(self, progress: Progress | None) -> list[torch.Tensor]:
        layers = self.tree.language_model.layers
        depth = self.config.vision.depth if self.features.unseen else 0
        steps = Steps(progress, depth + (len(layers) if self.segments else 0))
        sequences = self._embedded_segments(self._see_references(steps))
        if self.segments:
            self.tree.language_model.decode(
                sequences,
                lambda i: steps(step_text(LAYER, i, len(layers))),
                lend_once=self.lend_once and len(sequences) > 1,
            )
        done = zip(self.segments, sequences, strict=True)
        self._computed = {segment: (sequence.hidden, sequence.past) for segment, sequence in done}
        return [self._assembled(whole) for whole in self.wholes]

    def _see_references(self, steps: Steps) -> Mapping[object, VisionFeatures]:
        def on_block(i: int) -> None:
            steps(step_text(VISION_BLOCK, i, len(self.tree.visual.blocks)))

        return self.features.see(self.tree.visual, self.device, self.dtype, on_block, self.lend_once, self._room)

    def _embedded_segments(self, features: Mapping[object, VisionFeatures]) -> list[EmbeddedSequence]:
        pasts: dict[Segment, Past] = {}
        for segment in self.segments:
            before = [(pasts.get(branch, branch), rows) for branch, rows in chain(segment.parent, segment.offset)]
            pasts[segment] = Past(before, segment.keep_rows, segment.followed)
        return [self._embedded_segment(segment, features, past) for segment, past in pasts.items()]

    def _embedded_segment(
        self, segment: Segment, features: Mapping[object, VisionFeatures], past: Past
    ) -> EmbeddedSequence:
        ids = self.requests[segment.request].ids
        hidden = self.tree.language_model.embed_tokens(ids[segment.start :], self.device, self.dtype)  # [rows, D]
        placements = []
        for block, reference in zip(segment.blocks, self._references[segment.request], strict=True):
            seen, start = features[reference.key], block.start - segment.start
            place = Placement(start, block.stop - segment.start, block.offset - reference.offset, seen.deepstack)
            hidden[place.start : place.stop] = place.rows(seen.merged)
            placements.append(place)
        positions = position_ids(len(ids), self.blocks[segment.request])[:, segment.start :]
        rotary = text_rotary(positions, self.config.text, self.device, self.dtype)
        return EmbeddedSequence(hidden, rotary, placements, past)

    def _assembled(self, whole: Whole) -> torch.Tensor:
        """The hidden states of a whole request, in memory of its own."""
        return torch.cat([self._hidden_of(branch)[:rows].to(self.device) for branch, rows in whole.parts])

    def _hidden_of(self, branch: Branch) -> torch.Tensor:
        return branch.hidden if isinstance(branch, Node) else self._computed[branch][0]

    def keep(self) -> None:
        """Features first: what is used last goes last, and a prefix spares more than its features."""
        for key, features in self.features.kept.items():
            self.store.add_features(self._mark, key, features)
        nodes: dict[Branch, Node] = {}
        for segment, (hidden, past) in self._computed.items():
            if segment.keep_rows:
                rows = segment.keep_rows
                parent = nodes.get(segment.parent, segment.parent)
                own = at_rest(hidden[:rows].clone())
                nodes[segment] = Node(parent, segment.offset, segment.keys[:rows].clone(), past.kept, own)
                self.store.add(self._mark, self.identity, nodes[segment])
