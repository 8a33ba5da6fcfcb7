"""Where our encoder and one release of transformers part: every step of theirs, ours on the same input.

Contract: `compare_steps(encoder, oracle, inputs)` -> step -> largest absolute difference, 0.0 where all bits agree. The
steps together are the whole model, so that a difference of the hidden states comes from those that are not 0.0.
`use_released_convolution` puts the released Conv3d where our patch embedding is a matrix product (the one exception
that the project states); `use_our_interpolation` puts our position interpolation into their tower, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from h3te.encoder import Encoder
from h3te.encoder.placement import find_blocks, position_ids
from h3te.encoder.rope import interpolation_taps, patch_positions, text_rotary, vision_rotary
from h3te_tests.oracle import PADS, Inputs, Oracle

CPU = torch.device("cpu")
STEPS = (
    "patch embedding", "position interpolation", "vision rotary", "vision blocks", "mergers", "features into tokens",
    "position ids", "text rotary", "decoder layers", "DeepStack sums",
)  # fmt: skip


@dataclass
class Call:
    """One call of a module: its first argument, its keyword arguments, its first result."""

    given: torch.Tensor
    named: dict = field(default_factory=dict)
    result: torch.Tensor | None = None


@contextmanager
def recorded(modules: dict[str, torch.nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Every call of these modules, in order, with copies of the tensors."""
    calls: dict[str, list[Call]] = {name: [] for name in modules}

    def hook(name):
        def record(module, arguments, named, result):
            given = arguments[0] if arguments else named["hidden_states"]
            first = result[0] if isinstance(result, tuple) else result
            calls[name].append(Call(given.clone(), named, first.clone()))

        return record

    handles = [m.register_forward_hook(hook(n), with_kwargs=True) for n, m in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def use_released_convolution(encoder: Encoder) -> None:
    """The released Conv3d in the place of our matrix product."""
    proj = encoder.model.visual.patch_embed.proj

    def forward(x: torch.Tensor) -> torch.Tensor:
        kernel, bias = proj.weight.to(x.dtype), proj.bias.to(x.dtype)
        return F.conv3d(x.view(-1, *kernel.shape[1:]), kernel, bias, stride=kernel.shape[2:]).flatten(1)

    proj.forward = forward


def interpolated(encoder: Encoder, grids: list, like: torch.Tensor) -> torch.Tensor:
    """Our interpolated positions [N, width], as they are added to the patch embedding."""
    taps, weights = interpolation_taps(grids, 2, 48)
    return encoder.model.visual.pos_embed(like, taps, weights).to(like.dtype)


def use_our_interpolation(encoder: Encoder, oracle: Oracle) -> None:
    """Exchange the position interpolation of a tower that has one of its own (before 5.15)."""
    like = torch.empty(0, dtype=encoder.dtype)
    oracle.model.visual.fast_pos_embed_interpolate = lambda grid_thw: interpolated(encoder, grid_thw.tolist(), like)


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest absolute difference; infinite where shapes or dtypes differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    return float((ours.double() - theirs.double()).abs().max()) if ours.numel() else 0.0


@torch.no_grad()
def compare_steps(encoder: Encoder, oracle: Oracle, inputs: Inputs) -> dict[str, float]:
    """Step -> largest absolute difference over all its modules and calls."""
    found = dict.fromkeys(STEPS, 0.0)
    features = {}
    for modality, pixels, grid in _pictures(inputs):
        features[modality] = _compare_tower(encoder, oracle, pixels.to(encoder.dtype), grid, found)
    _compare_decoder(encoder, oracle, inputs, features, found)
    return found


def _pictures(inputs: Inputs) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    if inputs.pixel_values is not None:
        yield "image", inputs.pixel_values, inputs.image_grid_thw
    if inputs.pixel_values_videos is not None:
        yield "video", inputs.pixel_values_videos, inputs.video_grid_thw


def _note(found: dict[str, float], step: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    found[step] = max(found[step], difference(ours, theirs))


def _compare_tower(encoder, oracle, pixels, grid, found) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns their merged features and their DeepStack features."""
    ours, theirs, grids = encoder.model.visual, oracle.model.visual, grid.tolist()
    names = {"patch": theirs.patch_embed, "merger": theirs.merger}
    names |= {f"block {i}": block for i, block in enumerate(theirs.blocks)}
    names |= {f"level {i}": merger for i, merger in enumerate(theirs.deepstack_merger_list)}
    with recorded(names) as calls:
        theirs(pixels, grid_thw=grid)
    patch, first = calls["patch"][0], calls["block 0"][0]
    _note(found, "patch embedding", ours.patch_embed(pixels), patch.result)
    placed = patch.result + interpolated(encoder, grids, patch.result)
    _note(found, "position interpolation", placed, first.given)
    rotary = vision_rotary(patch_positions(grids, 2), encoder.config.vision, CPU)
    for mine, wanted in zip((rotary.cos, rotary.sin), first.named["position_embeddings"], strict=True):
        _note(found, "vision rotary", mine, wanted)
    frames = [h * w for t, h, w in grids for _ in range(t)]
    for i, block in enumerate(ours.blocks):
        call = calls[f"block {i}"][0]
        _note(found, "vision blocks", block(call.given, rotary, frames), call.result)
    mergers = {"merger": ours.merger} | {f"level {i}": m for i, m in enumerate(ours.deepstack_merger_list)}
    for name, merger in mergers.items():
        _note(found, "mergers", merger(calls[name][0].given), calls[name][0].result)
    return calls["merger"][0].result, [calls[f"level {i}"][0].result for i in range(len(ours.deepstack_merger_list))]


def _compare_decoder(encoder, oracle, inputs, features, found) -> None:
    ours, theirs = encoder.model.language_model, oracle.model.language_model
    with recorded({f"layer {i}": layer for i, layer in enumerate(theirs.layers)}) as calls:
        oracle.hidden(inputs)
    layers = [calls[f"layer {i}"][0] for i in range(len(theirs.layers))]
    hidden = ours.embed_tokens(inputs.ids, CPU, encoder.dtype)
    where = {modality: inputs.ids == PADS[modality] for modality in features}
    for modality, (merged, _) in features.items():
        hidden[where[modality]] = merged
    _note(found, "features into tokens", hidden, layers[0].given[0])
    grids = [[] if g is None else g.tolist() for g in (inputs.image_grid_thw, inputs.video_grid_thw)]
    positions = position_ids(len(inputs.ids), find_blocks(inputs.ids, *grids, 2))
    _note(found, "position ids", positions, oracle.position_ids(inputs))
    rotary = text_rotary(positions, encoder.config.text, CPU, encoder.dtype)
    for mine, wanted in zip((rotary.cos, rotary.sin), layers[0].named["position_embeddings"], strict=True):
        _note(found, "text rotary", mine, wanted[0])
    for i, (layer, call) in enumerate(zip(ours.layers, layers, strict=True)):
        _note(found, "decoder layers", layer(call.given[0], rotary), call.result[0])
        if i + 1 < len(layers):
            after = call.result[0].clone()
            for modality, (_, deepstack) in features.items():
                if i < len(deepstack):
                    after[where[modality]] += deepstack[i]
            _note(found, "DeepStack sums", after, layers[i + 1].given[0])
