"""Names the first part of the model whose output is not finite.

Contract: an encode is checked once, at its end: a check per part would make a GPU wait 77 times. Only when that check
fails does the same request run again, watched, and only as far as the first bad part; ranks of several find it
together. The error names the part, the precision, and whether the part's own weights are bad (a damaged file, a broken
LoRA) or not (overflow, a device that miscomputes).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .leaf import Leaf
from .parallel.group import ALONE, TensorParallel
from .vision import VisionTower

if TYPE_CHECKING:
    from .model import ReleasedTree

TOKEN_TABLE = "token embedding"
ELSEWHERE = "what another rank holds of it"


@dataclass(frozen=True)
class BadPart:
    """`name` for people; `weights`: which of the part's own weights hold NaN or infinity, as released."""

    name: str
    weights: tuple[str, ...] = ()


class _Found(Exception):  # leaves the watched run at the first bad part; never seen outside
    def __init__(self, part: BadPart):
        self.part = part


def is_finite(hidden: torch.Tensor) -> bool:
    """True for finite values and for tensors without values (on the meta device)."""
    return hidden.is_meta or bool(torch.isfinite(hidden).all())


def non_finite_error(
    model: ReleasedTree,
    rerun: Callable[[], object],
    dtype: torch.dtype,
    where: object,
    parallel: TensorParallel = ALONE,
) -> RuntimeError:
    """The error to raise after a run of `model` (`language_model` and `visual`) gave NaN or infinity.

    `rerun()` repeats that run; whatever else it raises (Stop) passes through."""
    part = find_bad_part(model, rerun, parallel)
    start = "Encoder: expected finite hidden states, got NaN or infinity"
    where = where if parallel.size == 1 else f"{where}, {parallel.place}"
    computed = f"computed in {str(dtype).removeprefix('torch.')} on {where}"
    if part is None:
        return RuntimeError(
            f"{start}, {computed}, and finite values when the same request ran again. The device or its memory is "
            "unreliable: undo overclocking, or choose another device."
        )
    if part.weights:
        return RuntimeError(
            f"{start}, first in {part.name}, {computed}; NaN or infinity is in {', '.join(part.weights)}. "
            "The file or a LoRA on it is damaged: remove the LoRA, else download the file again."
        )
    return RuntimeError(
        f"{start}, first in {part.name}, {computed}; its weights are finite. The values overflow or the device "
        "miscomputes: try dtype float32, then another device."
    )


def find_bad_part(model: ReleasedTree, run: Callable[[], object], parallel: TensorParallel = ALONE) -> BadPart | None:
    """The first part whose output is not finite, on any rank, while `run()` computes with `model`; None if there is
    none."""
    with _watched(model, parallel):
        try:
            run()
        except _Found as found:
            return found.part
    return None


@contextmanager
def _watched(model: ReleasedTree, parallel: TensorParallel) -> Generator[None, None, None]:
    hooks = [module.register_forward_hook(_check_output(name, path, parallel)) for name, path, module in _parts(model)]
    hooks.append(model.language_model.layers[0].register_forward_pre_hook(_check_embeddings))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parts(model: ReleasedTree) -> Iterator[tuple[str, str, nn.Module]]:
    """(name for people, released path, module) of every part whose output is checked."""
    if model.visual is not None:
        yield from _vision_parts(model.visual)
    yield from _numbered("layer", "model.language_model.layers", model.language_model.layers)


def _vision_parts(tower: VisionTower) -> Iterator[tuple[str, str, nn.Module]]:
    path = "model.visual"
    yield "patch embedding", f"{path}.patch_embed", tower.patch_embed
    yield "vision position table", f"{path}.pos_embed", tower.pos_embed
    yield from _numbered("vision block", f"{path}.blocks", tower.blocks)
    yield from _numbered("DeepStack merger", f"{path}.deepstack_merger_list", tower.deepstack_merger_list)
    yield "vision merger", f"{path}.merger", tower.merger


def _numbered(name: str, path: str, modules: nn.ModuleList) -> Iterator[tuple[str, str, nn.Module]]:
    for i, module in enumerate(modules):
        yield f"{name} {i + 1} of {len(modules)}", f"{path}.{i}", module


def _check_output(name: str, path: str, parallel: TensorParallel) -> Callable[..., Any]:
    def check(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        if parallel.any(not is_finite(output), output.device):
            weights = tuple(_bad_weights(module, path, output))
            elsewhere = parallel.any(bool(weights), output.device)
            raise _Found(BadPart(f"{name} ({path})", weights or ((ELSEWHERE,) if elsewhere else ())))

    return check


def _check_embeddings(layer: nn.Module, args: tuple[Any, ...]) -> None:
    """Vision features were checked when they were made, so what is bad here was looked up in the token table."""
    rows = torch.nonzero(~torch.isfinite(args[0]).all(-1))[:, 0].tolist()
    if rows:
        name = f"{TOKEN_TABLE} of token {rows[0] + 1} of {len(args[0])}"
        raise _Found(BadPart(name, ("model.language_model.embed_tokens.weight",)))


def _bad_weights(part: nn.Module, path: str, like: torch.Tensor) -> Iterator[str]:
    for name, leaf in part.named_modules(prefix=path):
        if isinstance(leaf, Leaf):
            with leaf.borrow(like) as (weight, bias):
                own = {"weight": leaf.matrix(weight, like.dtype), "bias": bias, "pre_quant_scale": leaf.input_scale}
                for attribute, tensor in own.items():
                    if tensor is not None and not is_finite(tensor):
                        yield f"{name}.{attribute}"
