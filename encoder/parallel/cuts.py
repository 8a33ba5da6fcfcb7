"""What of each weight a rank holds: one table of released names, and the sizes that follow from it.

Contract: rows of q, k, v (whole heads), gate, up and the token table; columns of o and down, whose products are summed
over the ranks; everything else (norms, the vision tower) whole on every rank. Each rank takes the same share, in the
order of ranks. `local_config` is the config that the model code is built from on one rank; what does not divide is a
ValueError that names the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from ..config import EncoderConfig
from .group import ALONE, SIZES, TensorParallel

AXES = {
    "embed_tokens": 0, "self_attn.q_proj": 0, "self_attn.k_proj": 0, "self_attn.v_proj": 0, "mlp.gate_proj": 0,
    "mlp.up_proj": 0, "self_attn.o_proj": 1, "mlp.down_proj": 1,
}  # fmt: skip
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
_NAME = re.compile(r"model\.language_model\.(?:layers\.\d+\.)?([\w.]+)\.weight")
Shape = tuple[int, ...]


def axis_of(name: str) -> int | None:
    """The axis along which the released weight `name` is cut: 0 rows, 1 columns, None not at all."""
    found = _NAME.fullmatch(name)
    return AXES.get(found[1]) if found else None


@dataclass(frozen=True)
class Span:
    """start..stop of an axis of a weight's matrix."""

    axis: int
    start: int
    stop: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """That part of a tensor, in memory of its own: the whole may go."""
        return tensor.narrow(self.axis, self.start, self.stop - self.start).clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Cuts:
    """The spans of one rank."""

    parallel: TensorParallel

    def whole(self, name: str, local: Shape) -> Shape:
        """The shape of the weight of which a rank holds `local`."""
        axis = axis_of(name)
        return tuple(n * self.parallel.size if i == axis else n for i, n in enumerate(local))

    def span(self, name: str, shape: Shape) -> Span | None:
        """What this rank holds of the weight `name` of this (whole) shape; None: all of it."""
        axis = axis_of(name)
        if axis is None or self.parallel.size == 1:
            return None
        size = shape[axis] // self.parallel.size
        return Span(axis, self.parallel.rank * size, (self.parallel.rank + 1) * size)


WHOLE = Cuts(ALONE)


def local_config(config: EncoderConfig, parallel: TensorParallel) -> EncoderConfig:
    """The config of one rank. Raises ValueError for a number that does not divide by the ranks."""
    if parallel.size <= 1:
        return config
    sizes = {key: getattr(config.text, key) for key in DIVIDED}
    for key, size in sizes.items():
        if size % parallel.size:
            fitting = [str(n) for n in SIZES if not any(size % n for size in sizes.values())]
            raise ValueError(
                f"TensorParallel: expected {key} to divide by {parallel.size} ranks, got {size:,}. This model runs on "
                f"{' or '.join(fitting)} rank{'s' if len(fitting) > 1 else ''}."
            )
    text = replace(config.text, **{key: size // parallel.size for key, size in sizes.items()})
    return replace(config, text=text)
