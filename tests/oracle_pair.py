"""Our encoder beside the official path in one dtype, compared on whole requests to the last bit.

Contract: `same_request` compares ids, tags, grids, pixels and positions; `Pair.same_states` the hidden states too, of
`encode` with the released Conv3d in the place of our matrix product; `Pair.product_error` is what the product costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from h3te.encoder import Encoder, build_encoder
from h3te.encoder.placement import find_blocks, position_ids
from h3te.encoder.presentation import Presentation, present
from h3te.encoder.tokens import H3Tokenizer, TokenSequence, tokenize
from h3te_tests.golden_cases import relative_error
from h3te_tests.oracle import END, PADS, START, Inputs, Oracle, official_inputs, official_tokenizer, tiny_state
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config

DTYPES = [torch.float32, torch.bfloat16]
# Relative L2 behind a tower and five layers with the patch embedding as a product: measured 1.1e-6 and up to 1.3e-2.
# bfloat16 rounds every step, and is itself 1.2e-2 from float32.
WHOLE_BOUND = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


def equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def make_ours(dtype: torch.dtype, tap_layer: int = TAP_LAYER, tokenizer: Path | None = None) -> Encoder:
    encoder = build_encoder(tiny_config(), dtype=dtype, tap_layer=tap_layer, tokenizer=tokenizer)
    encoder.load_weights(tiny_state().items())
    return encoder


@contextmanager
def released_convolution(encoder: Encoder) -> Iterator[None]:
    """The released Conv3d in the place of our matrix product."""
    proj = encoder.model.visual.patch_embed.proj

    def forward(x: torch.Tensor) -> torch.Tensor:
        kernel, bias = proj.weight.to(x.dtype), proj.bias.to(x.dtype)
        return F.conv3d(x.view(-1, *kernel.shape[1:]), kernel, bias, stride=kernel.shape[2:]).flatten(1)

    proj.forward = forward
    try:
        yield
    finally:
        del proj.forward


class Request:
    """One request laid out by both sides."""

    def __init__(self, prompt: str, references: Sequence, tokenizers: Tokenizers):
        self.theirs: Inputs = official_inputs(prompt, references, tokenizers.theirs)
        self.presentation: Presentation = present(prompt, references)
        self.ours: TokenSequence = tokenize(self.presentation, tokenizers.ours)

    def assert_same(self) -> None:
        """Ids, tags, grids and pixels."""
        equal(self.ours.ids, self.theirs.ids)
        vision = torch.tensor([START, END, *PADS.values()])
        equal(self.ours.tags, (~torch.isin(self.theirs.ids, vision)).long())
        self._same_patches(self.presentation.image, self.theirs.pixel_values, self.theirs.image_grid_thw)
        self._same_patches(self.presentation.video, self.theirs.pixel_values_videos, self.theirs.video_grid_thw)

    def _same_patches(self, ours, pixel_values, grid_thw) -> None:
        assert (ours is None) == (pixel_values is None)
        if ours is not None:
            equal(ours.grid_thw, grid_thw)
            equal(ours.pixel_values, pixel_values)

    def position_ids(self) -> torch.Tensor:
        """Ours, int64 [3, S]."""
        patches = (self.presentation.image, self.presentation.video)
        grids = [[] if p is None else p.grid_thw.tolist() for p in patches]
        return position_ids(len(self.ours), find_blocks(self.ours.ids, *grids, 2))


class Tokenizers:
    """Both tokenizers over the same vocab.json and merges.txt; `folder` is for transformers' copy."""

    def __init__(self, files: Path, folder: Path):
        self.ours = H3Tokenizer.from_folder(files)
        self.theirs = official_tokenizer(files, folder)


class Pair:
    """Both models on the tiny weights."""

    def __init__(self, dtype: torch.dtype, tokenizers: Tokenizers):
        self.dtype, self.tokenizers = dtype, tokenizers
        self.theirs = Oracle(dtype)
        self.ours = make_ours(dtype, tokenizer=tokenizers.ours)

    def same_request(self, prompt: str, references: Sequence) -> Request:
        request = Request(prompt, references, self.tokenizers)
        request.assert_same()
        equal(request.position_ids(), self.theirs.position_ids(request.theirs))
        return request

    def same_states(self, prompt: str, references: Sequence) -> torch.Tensor:
        """Everything of `same_request`, then the hidden states to the last bit; returns the official ones [S, D]."""
        request = self.same_request(prompt, references)
        wanted = self.theirs.hidden(request.theirs)
        with released_convolution(self.ours):
            equal(self.ours.encode_presentation(request.presentation).hidden[0], wanted)
        return wanted

    def product_error(self, prompt: str, references: Sequence, wanted: torch.Tensor) -> float:
        """Relative L2 distance of our own `encode` from the official hidden states."""
        return relative_error(self.ours.encode(prompt, references).hidden[0], wanted)
