"""What ComfyUI's nodes may ask of a CLIP and MiniMax H3 has no use for, refused by name.

Contract: every method raises at once, before anything is loaded, and says which node to remove or what to use instead.
"""

from __future__ import annotations

import logging
from typing import Any

from .tokens import WHO

logger = logging.getLogger(__name__)


class Refusals:
    """Stands before `comfy.sd.CLIP` among the bases of ours."""

    def clip_layer(self, layer_idx: int | None) -> None:
        refuse_layer(layer_idx)
        self.layer_idx = None

    def set_tokenizer_option(self, option_name: str, value: Any) -> None:
        logger.warning("%s: tokenizer option %s means nothing to MiniMax H3 and is ignored.", WHO, option_name)

    def generate(self, *args, **kwargs):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to generate text. The H3 encoder ends at layer 50 "
            "and has no language head: load a text generation model for that."
        )

    def decode(self, *args, **kwargs):
        self.generate()

    def get_sd(self):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to save the weights (CLIPSave). "
            "Keep the original checkpoint: this encoder reads it unchanged."
        )

    state_dict_for_saving = get_sd

    def get_key_patches(self):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to merge the weights (CLIPMergeSimple and its like). "
            "This encoder computes as released: remove that node; a LoRA can be applied with LoraLoader."
        )


def refuse_layer(layer_idx: int | None) -> None:
    """Raises ValueError for any choice of a layer."""
    if layer_idx is not None:
        raise ValueError(
            f"{WHO}: expected no layer choice, got layer {layer_idx} from CLIP Set Last Layer (CLIPSetLastLayer). "
            "MiniMax H3 is conditioned on layer 50 alone: remove that node."
        )
