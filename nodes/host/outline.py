"""Pictures that are known by their size alone, and what they show in little.

Contract: `blank` has a shape and no memory; `little` looks at a few of the pixels, however many there are, and makes
pictures of at most LITTLE pixels a side with the aspect ratio at which they will be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...encoder import geometry
from ..colours import RGB
from .images import to_rgb

LITTLE = 320
OVERSAMPLED = 2  # pixels looked at for each one made, along each side


def blank(width: int, height: int, frames: int | None = None) -> torch.Tensor:
    """uint8 [height, width, 3], or [frames, height, width, 3]: one byte, seen again and again."""
    shape = (height, width, 3) if frames is None else (frames, height, width, 3)
    return torch.zeros(1, dtype=torch.uint8).expand(shape)


def little(
    image: torch.Tensor, size: geometry.Size, where: str, background: RGB, picks: Sequence[int] | None = None
) -> torch.Tensor:
    """IMAGE [B, H, W, C], or those of it that `picks` names, as they look stretched to `size` (width, height): uint8
    [n, h, w, 3]. Raises ValueError naming `where` for values that are no picture, where it meets one."""
    width, height = reduced(size)
    found = [image[i] for i in (range(len(image)) if picks is None else picks)]
    thin = [thinned(picture, width, height)[None] for picture in found]
    return torch.stack([geometry.resize(to_rgb(each, where, background)[0], width, height) for each in thin])


def reduced(size: geometry.Size) -> geometry.Size:
    """The same aspect ratio within LITTLE."""
    scale = min(1.0, LITTLE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def thinned(picture: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """[H, W, C] -> every n-th row and column, enough of them for `width` x `height`. A view."""
    step = max(1, min(picture.shape[0] // (OVERSAMPLED * height), picture.shape[1] // (OVERSAMPLED * width)))
    return picture[step // 2 :: step, step // 2 :: step]
