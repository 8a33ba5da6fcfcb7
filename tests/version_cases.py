"""The requests of the version matrix, and our encoder on them. Imports nothing of transformers: it runs without it too.

Contract: `CASES` (name -> prompt, references as uint8 arrays), `our_encoder(dtype, tokenizer)` on the goldens' weights,
`our_hashes(encoder, case)`: SHA-256 of ids, tags and hidden states, by which two processes compare our output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from h3te.encoder import AudioReference, Encoder, ImageReference, VideoReference, build_encoder
from h3te_tests.golden_cases import clip, pattern
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_IMAGE, _WIDE, _TALL = (ImageReference(pattern(*size)) for size in ((256, 448, 1), (90, 300, 2), (517, 333, 7)))
_VIDEO = VideoReference(clip(27, 64, 96, 3))
_SOUND_VIDEO = VideoReference(clip(14, 96, 64, 4), has_audio=True)
_OFF_32 = VideoReference(clip(48, 100, 150, 8))
_SAMPLED = VideoReference(clip(5, 70, 64, 6), timestamps=(0.0, 0.7, 1.3, 2.0, 2.4))

CASES = {
    "text": ("A red fox runs through snow.", ()),
    "text with H3 tokens": ("She says <d>Come.</d> (quietly:1.2) <|cutoff|>", ()),
    "one image": ("What <Picture 1> shows.", (_IMAGE,)),
    "two images, odd sizes": ("From <Picture 1> to <Picture 2>.", (_WIDE, _TALL)),
    "video, 3 samples": ("As in <Video 1>.", (_VIDEO,)),
    "video, 100 x 150 pixels": ("As in <Video 1>.", (_OFF_32,)),
    "three videos": ("One after another.", (_VIDEO, _SAMPLED, _OFF_32)),
    "video with soundtrack": ("As in <Video 1>.", (_SOUND_VIDEO,)),
    "audio, image, video": ("All of it.", (AudioReference(), _WIDE, _SOUND_VIDEO)),
    "video, image, audio": ("All of it.", (_VIDEO, _IMAGE, AudioReference(), _SAMPLED)),
}


@lru_cache(maxsize=1)
def weights() -> Mapping[str, torch.Tensor]:
    """The goldens' weights by released name, made once per process."""
    return dict(tiny_weights())


def our_encoder(dtype: torch.dtype, tokenizer: Path) -> Encoder:
    """Our encoder on the tiny weights; tokenizer: a folder with vocab.json and merges.txt."""
    encoder = build_encoder(tiny_config(), dtype=dtype, tap_layer=TAP_LAYER, tokenizer=tokenizer)
    encoder.load_weights(weights().items())
    return encoder


def our_hashes(encoder: Encoder, case: str) -> dict[str, str]:
    """Part of our output -> the first 16 digits of its SHA-256."""
    got = encoder.encode(*CASES[case])
    tensors = {"ids": got.token_ids, "tags": got.token_tags, "hidden": got.hidden}
    return {name: _digest(tensor) for name, tensor in tensors.items()}


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
