"""transformers on packed checkpoints, which it does not open itself: it is given each matrix unpacked.

Contract: `official(checkpoint, tap_layer, dtype)` -> an OfficialPath for what `load_encoder` opens. A factor that a
packed linear applies to its input (AWQ) is multiplied into the columns of the matrix: the same product.
"""

from __future__ import annotations

import torch
from given_checkpoint import Checkpoint
from official_path import OfficialPath
from pack import h3te_module


class UnpackedOfficialPath(OfficialPath):
    def __init__(self, checkpoint: Checkpoint, **options):
        super().__init__(checkpoint.path, tokenizer=checkpoint.official_tokenizer, **options)
        load = h3te_module("encoder").load_encoder
        self._source = load(checkpoint.path, tap_layer=self.tap_layer, tokenizer=checkpoint.tokenizer).source

    def read(self, name: str) -> torch.Tensor:
        """A weight by released name; packed ones in compute dtype, or in float32 where they carry an input factor."""
        stored, files = self._source.weights[name], self._source.files
        if stored.packing is None:
            return files.read(stored.parts["weight"])
        parts = stored.fit({part: files.read(entry) for part, entry in stored.parts.items()})
        unpack = h3te_module("encoder.packing").unpack
        if stored.input_scale is None:
            return unpack(stored.packing, parts, self.dtype)
        return unpack(stored.packing, parts, torch.float32) * files.read(stored.input_scale).float()


def official(checkpoint: Checkpoint, tap_layer: int, dtype: torch.dtype) -> OfficialPath:
    """The plain path where every weight is stored as it is used."""
    load = h3te_module("encoder").load_encoder
    weights = load(checkpoint.path, tap_layer=tap_layer, tokenizer=checkpoint.tokenizer).source.weights
    if any(stored.packing is not None for stored in weights.values()):
        return UnpackedOfficialPath(checkpoint, tap_layer=tap_layer, dtype=dtype)
    return OfficialPath(checkpoint.path, tap_layer=tap_layer, dtype=dtype, tokenizer=checkpoint.official_tokenizer)
