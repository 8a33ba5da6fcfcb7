"""transformers' own Qwen3-VL model, called as a whole, with one part's weights in memory at a time.

Contract: `OfficialParts(...).run(request, on_part)`. The model's own `forward` does everything: packing, positions,
masks, DeepStack. Hooks give each module its weights before its call and drop them after it; in between
`on_part(Call)` sees the module's input and output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from official_path import OfficialPath, Request, renew_rotary
from parity_parts import DECODER_INPUT, PATCHES, POSITIONS, Part, Stages, hooked, weighted_parts
from torch import nn

EMBEDDING = "model.language_model.embed_tokens.weight"


@dataclass(frozen=True)
class Call:
    """One call of one part: input [N, width] (None where it has none) and output."""

    part: Part
    x: torch.Tensor | None
    output: torch.Tensor


class OfficialParts:
    def __init__(self, path: OfficialPath):
        self.path, self.model = path, path.model
        self.model.to(path.dtype)  # on `meta`: it only tells the model its compute dtype
        self.model.language_model.embed_tokens = _Lookup(path)
        self.model.language_model.norm = nn.Identity()
        for module in (self.model.visual, self.model.language_model):
            renew_rotary(module)

    @torch.no_grad()
    def run(self, request: Request, on_part: Callable[[Call], None]) -> None:
        """One forward of the whole model; `on_part` is called in its order, while the part's weights are in memory."""
        watch = _Watch(self, request, on_part)
        with hooked(watch.register):
            run_whole(self.model, request)

    def fill(self, module: nn.Module, prefix: str) -> None:
        self.path.fill(module, prefix)


def run_whole(model: nn.Module, request: Request) -> torch.Tensor:
    """transformers' model as a whole, without a cache -> last hidden state [S, D]."""
    ids, options = request.ids[None], {}
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        options["mm_token_type_ids"] = request.token_types[None]
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **request.pictures, **options)
    return out.last_hidden_state[0]


class _Watch:
    """The hooks of one run."""

    def __init__(self, official: OfficialParts, request: Request, on_part: Callable[[Call], None]):
        self.official, self.on_part = official, on_part
        self.stages = Stages(list(request.patches))
        self.patches: torch.Tensor | None = None  # the last patch embedding: what the positions are added to

    def register(self, handles: list) -> None:
        model = self.official.model
        for kind, index, module, prefix in weighted_parts(model):
            self._stream(handles, module, prefix)
            handles.append(module.register_forward_hook(self._seen(kind, index), with_kwargs=True))
        for module, kind in ((model.visual.blocks[0], POSITIONS), (model.language_model.layers[0], DECODER_INPUT)):
            handles.append(module.register_forward_pre_hook(self._entered(kind)))
        self._stream(handles, model.visual.pos_embed, "model.visual.pos_embed.")
        for _, _, module, _ in weighted_parts(model):
            handles.append(module.register_forward_hook(_dropped))

    def _stream(self, handles: list, module: nn.Module, prefix: str) -> None:
        handles.append(module.register_forward_pre_hook(lambda m, args: self.official.fill(m, prefix)))
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(_dropped))

    def _seen(self, kind: str, index: int | None):
        def hook(module, args, kwargs, output):
            x = args[0] if args else kwargs["hidden_states"]
            self.on_part(Call(self.stages.part(kind, index), _flat(x), _flat(output)))
            if kind == PATCHES:
                self.patches = output

        return hook

    def _entered(self, kind: str):
        def hook(module, args):
            self.on_part(Call(self.stages.part(kind, None), self.patches, _flat(args[0])))

        return hook


class _Lookup(nn.Module):
    """The token table: only the rows of a request are read."""

    def __init__(self, path: OfficialPath):
        super().__init__()
        self.path = path

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.path.read(EMBEDDING)[ids].to(self.path.dtype)


def _dropped(module: nn.Module, args, output) -> None:
    module.to("meta")


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x[0] if x.dim() == 3 else x
