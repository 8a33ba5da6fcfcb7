"""Digests of pictures that were encoded, remembered by the very tensors that they were made of.

Contract: `remember` after an encode, `known` before one; a picture is known while its IMAGE lives unchanged and is
prepared alike (size, fit, colour). Nothing is told from a look at some of the pixels. A change in place is noticed,
but of tensors made in inference mode, as ComfyUI's are: there nodes are not to change what they were given.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...encoder.presentation import Presentation

_found: WeakIdKeyDictionary = WeakIdKeyDictionary()


@dataclass(frozen=True, eq=False)
class Source:
    """image: the IMAGE that arrived; how: which of it, and how it is prepared; blocks: vision blocks made of it."""

    image: torch.Tensor
    modality: str
    how: Hashable
    blocks: int

    @property
    def key(self) -> Hashable:
        version = 0 if self.image.is_inference() else self.image._version
        return version, self.modality, self.how, self.blocks


def remember(prepared: Iterable[Any], presentation: Presentation) -> None:
    """What the encoder was shown of each of `prepared`, whose patches are those of `presentation`."""
    patches = {"image": presentation.image, "video": presentation.video}
    if any(p is not None and p.digests is None for p in patches.values()):
        return
    following = {modality: iter(p.digests if p else ()) for modality, p in patches.items()}
    for source in _sources(prepared):
        digests = [next(following[source.modality], None) for _ in range(source.blocks)]
        if None not in digests:
            _found.setdefault(source.image, {})[source.key] = tuple(digests)


def known(prepared: Iterable[Any]) -> Mapping[str, Sequence[bytes]] | None:
    """The digests of all vision blocks by modality, in order; None where one is not known."""
    digests: dict[str, list[bytes]] = {"image": [], "video": []}
    for source in _sources(prepared):
        found = _found.get(source.image, {}).get(source.key)
        if found is None:
            return None
        digests[source.modality] += found
    return digests


def _sources(prepared: Iterable[Any]) -> Iterator[Source]:
    return (item.source for item in prepared if item.source is not None and getattr(item, "show", True))
