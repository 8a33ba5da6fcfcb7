"""What travels on the chain sockets: references and keyframes in an order of the user's own.

Contract: a chain is a tuple of these frozen values. Pixels are ComfyUI IMAGE tensors [B, H, W, C], audio is ComfyUI's
{"waveform" [B, C, L], "sample_rate"}. A chain is read after the sockets of the encode node; its order is meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .colours import RGB

FITS = ("released", "stretch", "crop", "pad")
BLACK: RGB = (0, 0, 0)


@dataclass(frozen=True, eq=False)
class ImageItem:
    """One reference per picture of the batch. `vision_only`: seen by the text encoder, no latent for the sampler.
    timestamp: seconds, None for an untimed picture."""

    pixels: torch.Tensor
    vision_only: bool = False
    where: str = "reference image"
    timestamp: float | None = None


@dataclass(frozen=True, eq=False)
class VideoItem:
    """Frames [T, H, W, C] at `fps`, with an optional soundtrack. total: frames that the video had, where an end that
    no request can use is not among `frames`. played: frames per second by their own times; None where they have
    none."""

    frames: torch.Tensor
    fps: float = 24.0
    soundtrack: Mapping[str, Any] | None = None
    vision_only: bool = False
    where: str = "reference video"
    total: int | None = None
    played: float | None = None


@dataclass(frozen=True, eq=False)
class AudioItem:
    """A sound of its own."""

    audio: Mapping[str, Any]
    vision_only: bool = False
    where: str = "reference audio"


@dataclass(frozen=True, eq=False)
class KeyframeItem:
    """One picture pinned at `frame`, or at `second` when that is given; negative counts from the end. `show`: the text
    encoder sees it too. pad_colour: around a picture that is fitted by "pad"."""

    pixels: torch.Tensor
    frame: int = 0
    fit: str = "released"
    show: bool = True
    where: str = "keyframe"
    second: float | None = None
    pad_colour: RGB = BLACK


Reference = ImageItem | VideoItem | AudioItem
REFERENCES = (ImageItem, VideoItem, AudioItem)
KEYFRAMES = (KeyframeItem,)
_IN_WORDS = {
    REFERENCES: ("references", "Reference Image, Reference Video or Reference Audio (H3TE)"),
    KEYFRAMES: ("keyframes", "Keyframe (H3TE)"),
}


def checked_chain(chain: Any, kinds: tuple[type, ...], node: str, socket: str) -> tuple:
    """The items of a chain of REFERENCES or KEYFRAMES, none for an unlinked socket. Raises ValueError when
    something else arrived."""
    if chain is None:
        return ()
    if not _is_chain(chain, kinds):
        items, makers = _IN_WORDS[kinds]
        raise ValueError(
            f"{node}: expected {socket} to be a chain of {items}, got {_in_words(chain)}. Connect {makers}."
        )
    return chain


def _is_chain(chain: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(chain, tuple) and all(isinstance(item, kinds) for item in chain)


def _in_words(chain: Any) -> str:
    for kinds, (items, _) in _IN_WORDS.items():
        if _is_chain(chain, kinds):
            return f"a chain of {items}"
    if isinstance(chain, tuple):
        return f"a tuple of {', '.join(sorted({type(item).__name__ for item in chain}))}"
    return type(chain).__name__
