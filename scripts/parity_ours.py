"""Our encoder with one part's weights in memory at a time.

Contract: `OurParts(path, ...)` is what `load_encoder` makes; its own checkpoint reader gives each part its weights, as
views of the mapped file, when the part is called, and they are dropped after the call. `record(request, states)` runs
the encoder as it is and keeps every part's output; then `compute(part, x)` runs one part on another input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from official_path import Request
from pack import h3te_module
from parity_parts import (
    DECODER_INPUT,
    POSITION_PREFIX,
    POSITIONS,
    Part,
    Stages,
    States,
    hooked,
    weighted_parts,
)


class OurParts:
    """`path`: what `load_encoder` opens. `convolution`: the patch embedding as the released Conv3d, not as our matrix
    product."""

    def __init__(
        self, path: Path, *, tokenizer: Path | None, dtype: torch.dtype, layers: int, convolution: bool = False
    ):
        load_encoder = h3te_module("encoder").load_encoder
        self.encoder = load_encoder(path, dtype=dtype, tap_layer=layers, tokenizer=tokenizer)
        self.encoder.materialise = lambda progress=None: None  # weights come part by part instead
        self.convolution, tree = convolution, self.encoder.model
        self.scales_inputs = any(stored.input_scale for stored in self.encoder.source.weights.values())  # AWQ
        self.parts = {(kind, index): (module, prefix) for kind, index, module, prefix in weighted_parts(tree)}
        self.arguments: dict[tuple[str, str], tuple] = {}  # of (stage, kind): what a part takes beside its input
        self.largest = max(self._bytes(prefix) for _, prefix in self.parts.values())
        if convolution and tree.visual is not None:
            _use_released_convolution(tree.visual.patch_embed.proj)

    @torch.no_grad()
    def record(self, request: Request, states: States, say: Callable[[Part], None]) -> None:
        """One encode, every part's output kept: float tensors [N, width], [M, D] and [S, D]."""
        stages, tree = Stages(list(request.patches)), self.encoder.model

        def register(handles: list) -> None:
            for (kind, index), (module, prefix) in self.parts.items():
                handles.append(module.register_forward_pre_hook(lambda m, args, p=prefix: self._fill(p)))
                handles.append(module.register_forward_hook(keep(kind, index, prefix)))
            handles.append(tree.language_model.layers[0].register_forward_pre_hook(keep_input(DECODER_INPUT)))
            if request.patches:
                handles.append(tree.visual.pos_embed.register_forward_pre_hook(keep_arguments))
                handles.append(tree.visual.blocks[0].register_forward_pre_hook(keep_input(POSITIONS)))

        def keep(kind: str, index: int | None, prefix: str):
            def hook(module, args, output):
                part = stages.part(kind, index)
                self.arguments[part.stage, kind] = args[1:]
                states.save(part, output)
                self._drop(prefix)
                say(part)

            return hook

        def keep_input(kind: str):
            return lambda module, args: states.save(stages.part(kind, None), args[0])

        def keep_arguments(module, args):
            self.arguments[stages.part(POSITIONS, None, of="table").stage, POSITIONS] = args[1:]

        with hooked(register), self._weights(POSITION_PREFIX), self._weights("model.language_model.embed_tokens."):
            self.encoder.encode_ids(request.ids, **request.pictures)

    @torch.no_grad()
    def compute(self, part: Part, x: torch.Tensor) -> torch.Tensor:
        """One part on input x [N, width], with our own tables and grids of the recorded request."""
        arguments = self.arguments[part.stage, part.kind]
        if part.kind == POSITIONS:
            with self._weights(POSITION_PREFIX):
                return x + self.encoder.model.visual.pos_embed(x, *arguments).to(x.dtype)
        module, prefix = self.parts[part.kind, part.index]
        with self._weights(prefix):
            return module(x, *arguments)

    def compare_inputs(self, request: Request, prompt: str, references: Sequence) -> dict[str, bool]:
        """Whether our tokenizer and processors make the official request: {what: equal}."""
        presentation = h3te_module("encoder.presentation").present(prompt, references)
        ids = h3te_module("encoder.tokens").tokenize(presentation, self.encoder.tokenizer).ids
        found = {"token ids equal transformers'": torch.equal(ids, request.ids)}
        for modality, patches in request.patches.items():
            mine = getattr(presentation, modality)
            same = torch.equal(mine.pixel_values, patches) and torch.equal(mine.grid_thw, request.grids[modality])
            found[f"pixels of {modality}s equal transformers'"] = same
        return found

    @contextmanager
    def _weights(self, prefix: str) -> Iterator[None]:
        self._fill(prefix)
        try:
            yield
        finally:
            self._drop(prefix)

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self.encoder.slots.names if name.startswith(prefix)]

    def _bytes(self, prefix: str) -> int:
        return sum(self.encoder.source.weights[name].nbytes for name in self._names(prefix))

    def _fill(self, prefix: str) -> None:
        self.encoder.source.fill(self.encoder.slots, self._names(prefix))

    def _drop(self, prefix: str) -> None:
        self.encoder.source.announce(self.encoder.slots, self._names(prefix))


def _use_released_convolution(proj: torch.nn.Module) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        kernel, bias = proj.weight.to(x.dtype), proj.bias.to(x.dtype)
        return F.conv3d(x.view(-1, *kernel.shape[1:]), kernel, bias, stride=kernel.shape[2:]).flatten(1)

    proj.forward = forward
