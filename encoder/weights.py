"""Which released tensors an encoder needs, and putting them in their places.

Contract: `WeightSlots` maps every needed released name to its leaf. Assigning replaces the placeholder by the given
tensor itself (no copy, stored dtype kept). Names that the released checkpoint has but the tap does not need are
skipped; any other name, a wrong shape, and missing tensors are errors that list all of them, before anything is
changed. Of several ranks each keeps its own part of what is given; shapes are those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .decoder import Decoder
from .leaf import Leaf, Rest
from .packing import Packing
from .parallel.cuts import WHOLE, Cuts, Span
from .token_table import TokenTable

EMBED_TOKENS = "model.language_model.embed_tokens.weight"
PLAIN = (torch.bfloat16, torch.float16, torch.float32)  # what can be stored unpacked
Shape = tuple[int, ...]
_UNNEEDED = ("lm_head.weight", "model.language_model.norm.weight")
_PASS_ALL = "Pass the whole checkpoint of a MiniMax H3 text encoder under its released names, in one call."
_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.")


def is_unneeded(name: str, tap_layer: int) -> bool:
    """True for released tensors that hidden_states[tap_layer] does not depend on."""
    layer = _LAYER.match(name)
    return name in _UNNEEDED or bool(layer and int(layer.group(1)) >= tap_layer)


def _listed(names: Iterable[str], limit: int = 2000) -> str:
    names = sorted(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_shapes(
    needed: Mapping[str, Shape], found: Mapping[str, Shape], tap_layer: int, who: str, what_to_do: str
) -> None:
    """Raise ValueError unless `found` has every needed name in its needed shape and no unknown one.

    `what_to_do` ends the messages about names: a caller's dict and a user's file are mended differently.
    """
    unknown = [name for name in found if name not in needed and not is_unneeded(name, tap_layer)]
    if unknown:
        raise ValueError(
            f"{who}: expected released tensor names, got {len(unknown)} unknown: {_listed(unknown)}. {what_to_do}"
        )
    absent = [name for name in needed if name not in found]
    if absent:
        raise ValueError(
            f"{who}: expected {len(needed)} tensors, got {len(needed) - len(absent)}; missing: {_listed(absent)}. "
            f"{what_to_do}"
        )
    wrong = [f"{n} is {list(found[n])}, not {list(s)}" for n, s in needed.items() if tuple(found[n]) != tuple(s)]
    if wrong:
        raise ValueError(
            f"{who}: expected the shapes of config.json, got {len(wrong)} others: {_listed(wrong, 8)}. "
            "The config and the weights belong to different models."
        )


class WeightSlots:
    """The places of all weights of one encoder, by released name. `shapes`: of the whole weights, of which the places
    hold what `cuts` says."""

    def __init__(self, root: nn.Module, decoder: Decoder | None, leaf: type, cuts: Cuts = WHOLE):
        """decoder None: outside the group of ranks, without any place."""
        self.tap_layer = len(decoder.layers) if decoder else 0
        self._leaves: dict[str, tuple[Any, str]] = {}  # a Leaf, here or of the host, or the TokenTable
        if decoder is not None:
            self._leaves[EMBED_TOKENS] = (decoder.embed_tokens, "weight")
        for module_name, module in root.named_modules():
            if isinstance(module, leaf):
                for attribute in ("weight", "bias"):
                    if getattr(module, attribute, None) is not None:
                        self._leaves[f"{module_name}.{attribute}"] = (module, attribute)
        self.cuts = cuts
        self.shapes = {name: cuts.whole(name, tuple(self.get(name).shape)) for name in self.names}  # needed

    @property
    def names(self) -> list[str]:
        """Every needed name, the embedding first, then the order of the forward pass."""
        return list(self._leaves)

    def get(self, name: str) -> torch.Tensor:
        module, attribute = self._leaves[name]
        return getattr(module, attribute)

    def assign(self, name: str, tensor: torch.Tensor) -> None:
        """Put `tensor` in the place of `name`; it is used as it is, not copied."""
        module, attribute = self._leaves[name]
        module.assign(attribute, tensor)

    def announce(self, name: str, packing: Packing) -> None:
        """The weight `name` will come packed."""
        self._leaves[name][0].announce(packing)

    def store(self, name: str, rest: Rest, input_scale: torch.Tensor | None = None) -> None:
        """The weight `name` lies at `rest` while it is not on a device."""
        self._leaves[name][0].store(rest, input_scale)

    def missing(self) -> list[str]:
        """Names whose place still holds a placeholder that nothing stands for."""
        return [name for name, (module, attribute) in self._leaves.items() if self._is_missing(module, attribute)]

    def _is_missing(self, module: Leaf | TokenTable, attribute: str) -> bool:
        return getattr(module, attribute).is_meta and not module.rests(attribute)

    def total_bytes(self) -> int:
        return sum(self.get(name).numel() * self.get(name).element_size() for name in self.names)

    def load(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Assign a whole checkpoint of (released name, tensor); returns the names loaded. Nothing changes on an
        error."""
        if not self._leaves:
            return set()
        given, found = {}, {}
        for name, tensor in pairs:
            if not is_unneeded(name, self.tap_layer):
                found[name] = tuple(tensor.shape)
                given[name] = self._own_part(name, tensor)
        check_shapes(self.shapes, found, self.tap_layer, "load_weights", _PASS_ALL)
        other = [f"{name} ({t.dtype}, {t.device})" for name, t in given.items() if t.dtype not in PLAIN or t.is_meta]
        if other:
            raise ValueError(
                f"load_weights: expected bfloat16, float16 or float32 tensors with data, got {_listed(other, 8)}. "
                "Pass the tensors of the bf16 checkpoint."
            )
        for name, tensor in given.items():
            self.assign(name, tensor)
        return set(given)

    def _own_part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank keeps of it; a misfit stays as it is for the messages."""
        span = self.span(name) if self.shapes.get(name) == tuple(tensor.shape) else None
        return tensor if span is None else span.of(tensor)

    def span(self, name: str) -> Span | None:
        """The part of the weight `name` that has its place here; None: all of it."""
        return self.cuts.span(name, self.shapes[name])
