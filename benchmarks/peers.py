"""The two sides of a whole encode over one bf16 folder: our encoder, and transformers' own model as released.

Contract: `PEERS[name](folder, layers, tokenizer)` loads; `.tensors()` are its weights, `.encode(prompt, pictures)` ->
(ids [S], hidden [S, D]), `.watch` times the parts. transformers': `Qwen3VLModel.from_pretrained` with its config cut
to the layers that are needed and the final norm replaced by identity, which gives the bits of the released path
without the further layers and the list of all hidden states that it makes; sdpa attention, no cache, its own
tokenizer and processors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from pack import h3te_module
from stopwatch import Stopwatch
from torch import nn

Result = tuple[torch.Tensor, torch.Tensor]


class Ours:
    def __init__(self, folder: Path, layers: int, tokenizer: Path, **options):
        """options: further ones of `load_encoder`."""
        self.present = h3te_module("encoder.presentation").present
        self.encoder = h3te_module("encoder").load_encoder(folder, tap_layer=layers, tokenizer=tokenizer, **options)
        self.encoder.load_to_device()
        tree = self.encoder.model
        self.watch = Stopwatch(tree.visual, tree.language_model.layers)

    def tensors(self) -> Iterable[torch.Tensor]:
        return (self.encoder.slots.get(name) for name in self.encoder.slots.names)

    def encode(self, prompt: str, pictures: Sequence[torch.Tensor]) -> Result:
        reference = h3te_module("encoder").ImageReference
        present = self.watch.timed("pixels", self.present)
        with self._counted():
            done = self.encoder.encode_presentation(present(prompt, [reference(pixels) for pixels in pictures]))
        return done.token_ids, done.hidden[0]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Tokenising and unpacking are timed too."""
        owners = ((self.encoder.tokenizer, "encode", "tokenise"), (h3te_module("encoder.layers"), "unpack", "unpack"))
        with ExitStack() as stack:
            for owner, name, part in owners:
                stack.enter_context(mock.patch.object(owner, name, self.watch.timed(part, getattr(owner, name))))
            yield


class Official:
    def __init__(self, folder: Path, layers: int, tokenizer: Path):
        from given_checkpoint import official_tokenizer
        from official_path import OfficialPath
        from transformers import Qwen3VLConfig
        from transformers.models.qwen3_vl import Qwen3VLModel

        config = Qwen3VLConfig.from_pretrained(folder)
        config.text_config.num_hidden_layers = layers
        self.path = OfficialPath(
            folder, tap_layer=layers, dtype=torch.bfloat16, tokenizer=official_tokenizer(tokenizer)
        )
        options = {"attn_implementation": "sdpa", "local_files_only": True}
        model = Qwen3VLModel.from_pretrained(folder, config=config, dtype=torch.bfloat16, **options)
        model.language_model.norm = nn.Identity()
        self.path.model = self.model = model.eval().requires_grad_(False)
        self.watch = Stopwatch(model.visual, model.language_model.layers)

    def tensors(self) -> Iterable[torch.Tensor]:
        return self.model.parameters()

    @torch.no_grad()
    def encode(self, prompt: str, pictures: Sequence[torch.Tensor]) -> Result:
        from parity_official import run_whole

        reference = h3te_module("encoder").ImageReference
        prepare = self.watch.timed("tokens and pixels", self.path.prepare)
        request = prepare(prompt, [reference(pixels) for pixels in pictures])
        return request.ids, run_whole(self.model, request)


PEERS = {"ours": Ours, "official": Official}
