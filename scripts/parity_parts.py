"""The parts of the model that the parity walk compares, by the names that both sides give their modules.

Contract: `weighted_parts(tree)` lists (kind, index, module, prefix) of everything with weights below `visual` and
`language_model`, for our module tree and for transformers' alike; a `Part` is one call of one of them in one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

PATCHES, POSITIONS, BLOCK, DEEPSTACK, MERGER = (
    "patch embedding",
    "position embedding",
    "vision block",
    "DeepStack merger",
    "merger",
)
DECODER_INPUT, LAYER = "decoder input", "layer"


@dataclass(frozen=True)
class Part:
    """stage: image, video (all images, or all videos, go through the tower in one call) or decoder."""

    stage: str
    kind: str
    index: int | None = None

    @property
    def name(self) -> str:
        number = "" if self.index is None else f" {self.index}"
        return f"{self.kind}{number}" if self.stage == "decoder" else f"{self.stage}s: {self.kind}{number}"


def weighted_parts(tree: nn.Module) -> Iterator[tuple[str, int | None, nn.Module, str]]:
    """(kind, index, module, released prefix) in the order of the forward pass but for the mergers.

    The position table's own output is no part (both sides resample it in their own way): what is compared is the
    first block's input.
    """
    visual = tree.visual
    if visual is not None:
        yield PATCHES, None, visual.patch_embed, "model.visual.patch_embed."
        for kind, child in ((BLOCK, "blocks"), (DEEPSTACK, "deepstack_merger_list")):
            for i, module in enumerate(getattr(visual, child)):
                yield kind, i, module, f"model.visual.{child}.{i}."
        yield MERGER, None, visual.merger, "model.visual.merger."
    for i, module in enumerate(tree.language_model.layers):
        yield LAYER, i, module, f"model.language_model.layers.{i}."


POSITION_PREFIX = "model.visual.pos_embed."


class Stages:
    """Which stage a call of a part belongs to: the first call of each part is the first modality's, and so on."""

    def __init__(self, modalities: list[str]):
        self._modalities = modalities
        self._calls: Counter[tuple] = Counter()

    def part(self, kind: str, index: int | None, of: str = "") -> Part:
        """of: who asks, where several ask about the same call."""
        if kind in (LAYER, DECODER_INPUT):
            return Part("decoder", kind, index)
        call = self._calls[kind, index, of]
        self._calls[kind, index, of] += 1
        return Part(self._modalities[call], kind, index)


class States:
    """Tensors of one walk by part, kept in files: all of them together would take more memory than two layers."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, part: Part, tensor: torch.Tensor) -> None:
        save_file({"state": tensor.contiguous()}, self._file(part))

    def load(self, part: Part) -> torch.Tensor:
        return load_file(self._file(part))["state"]

    def __contains__(self, part: Part) -> bool:
        return self._file(part).exists()

    def _file(self, part: Part) -> Path:
        return self.folder / f"{part.name.replace(': ', '_').replace(' ', '_')}.safetensors"


@contextmanager
def hooked(register: Callable[[list], None]) -> Iterator[None]:
    """Hooks that `register` appends to a list are removed at the end, whatever happens."""
    handles: list = []
    try:
        register(handles)
        yield
    finally:
        for handle in handles:
            handle.remove()
