"""The encoder's modules under the names of ComfyUI's own H3 text encoder, as the patcher and LoRA loaders see them.

Contract: state-dict names are `qwen3vl_32b.transformer.model.layers.N...` and `qwen3vl_32b.transformer.visual...`. The
modules are the encoder's own (shared, not copied). Source: comfy/text_encoders/minimax.py of ComfyUI >= 0.30.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch import nn

from ...encoder import CheckpointReport, Encoder
from ...encoder.cache.identity import EncoderIdentity, encoder_identity
from ...encoder.leaf import Leaf
from ...encoder.packing import Packing
from .readers import Reading
from .remote_encoder import RemoteEncoder

if TYPE_CHECKING:
    from ..official.model import OfficialModel

logger = logging.getLogger(__name__)

WRAPPER = "qwen3vl_32b"  # the key of ComfyUI's H3 tokens and weights


class HostTree(nn.Module):
    """What stands in `CLIP.cond_stage_model` and in the patcher. `.encoder` computes, `.report` tells its origin.

    reader, unpack: what the options node chose, None to leave both as the encoder has them; `.reading`: what was done.
    """

    def __init__(
        self,
        encoder: Encoder,
        report: CheckpointReport | None = None,
        reader: str | None = None,
        unpack: str = "torch",
    ):
        super().__init__()
        self.report, self.reader, self.unpack = report, reader, unpack
        self.reading: Reading | None = None
        self.recorded: EncoderIdentity | None = None  # of an encoder without weights, which the store alone answers for
        self.remote: RemoteEncoder | None = None  # who computes for an encoder without weights
        self._identity: EncoderIdentity | None = None
        self._official: OfficialModel | None = None
        # past nn.Module's registry: a second registration would list every weight twice
        object.__setattr__(self, "encoder", encoder)
        transformer = nn.Module()
        transformer.model = nn.Module()
        transformer.model.layers = encoder.model.language_model.layers
        if encoder.model.visual is not None:
            transformer.visual = encoder.model.visual
        self.add_module(WRAPPER, nn.Module())
        self.get_submodule(WRAPPER).transformer = transformer

    @property
    def label(self) -> str:
        """Format and size, for people."""
        if self.recorded is not None:
            return f"cache only, {self.recorded.label}"
        if self.remote is not None:
            return self.remote.label
        return f"{self.encoder.weight_bytes / 1e9:.2f} GB" if self.report is None else self.report.describe()

    def official(self) -> OfficialModel:
        """transformers' own model over these very weights, made at the first call. Raises as `official_model`."""
        if self._official is None:
            from ..official.model import official_model

            self._official = official_model(self.encoder)
        return self._official

    def identity(self) -> EncoderIdentity | None:
        """Of the checkpoint by content, read once; None where there is none, or not the one any more that was opened.
        vision_packing, backend and lora are each request's own."""
        if self._identity is None:
            self._identity = self.recorded or (self.remote and self.remote.identity) or self._read_identity()
        return self._identity

    def _read_identity(self) -> EncoderIdentity | None:
        if self.encoder.source is None:
            return None
        try:
            return encoder_identity(self.encoder, self.report)
        except (OSError, RuntimeError, ValueError) as error:
            logger.info("H3TE: nothing is cached, the checkpoint cannot be told by its content: %s", error)
            return None

    @property
    def packings(self) -> list[Packing]:
        """Of the packed weights that are unpacked on the compute device."""
        leaves = (module for module in self.modules() if isinstance(module, Leaf))
        return [leaf.packing for leaf in leaves if leaf.packing is not None]

    @property
    def norms_carry_scales(self) -> bool:
        """True for an AWQ file: the scales of q, k, v, gate and up are folded into its norms."""
        source = self.encoder.source
        return source is not None and any(stored.input_scale is not None for stored in source.weights.values())

    def get_dtype(self):
        """Compute dtype, which the patcher asks for."""
        return self.encoder.dtype
