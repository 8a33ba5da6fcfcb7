"""Presentations as pictures of a node: what was asked and what became of it -> IMAGE tensors, shown on the node itself.

Contract: `pictures_of` draws one picture a prompt, thumbnails of shared references made once; `shown_on_node` puts
them into ComfyUI's temp folder and gives the `ui` value that shows them, as Preview Image does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from comfy_api.latest import ui
from PIL import Image

from ...encoder.pixels import FPS, SAMPLE_STRIDE, TEMPORAL_PATCH
from ...encoder.presentation_picture import Sheet, draw
from .any_clip import Encoded
from .images import to_image
from .keyframes import Keyframe
from .outline import reduced, thinned
from .references import Prepared, Target
from .shown import Shown

if TYPE_CHECKING:
    from ..requests import Request

TITLE = "What the text encoder reads"


def pictures_of(node: str, requests: Sequence[Request], done: Sequence[Encoded], most: int) -> list[torch.Tensor]:
    """IMAGE [1, H, W, 3] each, of the first `most`."""
    thumbs: dict[int, list[Image.Image]] = {}
    found = []
    for request, encoded in list(zip(requests, done, strict=True))[:most]:
        if id(request) not in thumbs:
            thumbs[id(request)] = [each for item in request.prepared for each in thumbnails(item)]
        drawn = draw(sheet_of(node, request, encoded, thumbs[id(request)]))
        found.append(to_image(torch.from_numpy(np.array(drawn)))[None])
    return found


def shown_on_node(pictures: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The `ui` values of ComfyUI's own preview."""
    saved = [name for picture in pictures for name in ui.PreviewImage(picture).as_dict()["images"]]
    return {"images": saved, "animated": (False,)}


def sheet_of(node: str, request: Request, encoded: Encoded, thumbs: Sequence[Image.Image]) -> Sheet:
    shown = encoded.shown
    return Sheet(
        title=TITLE,
        subtitle=f"{node}, {_asked(request.target)}",
        presentation=shown.presentation,
        sequence=shown.sequence,
        thumbs=thumbs,
        tiles=_tiles(request, shown),
        stages=shown.stages,
        notes=request.notes,
        warnings=[*request.warnings, *encoded.notes, *request.resized],
        remark=shown.remark,
    )


def _asked(target: Target) -> str:
    return f"for a video of {target.width} x {target.height}, {target.frames} frames ({target.frames / FPS:.1f} s)"


def _tiles(request: Request, shown: Shown) -> list[tuple[str, str]]:
    riding = [("references in every sampling step", request.riding)] if request.riding else []
    if shown.seconds is None:
        time = "not encoded"
    else:
        time = f"{shown.seconds:.1f} s" + (f" for {shown.prompts} prompts" if shown.prompts > 1 else "")
    return [*riding, ("cache", shown.cache), ("encode", time)]


def thumbnails(item: Prepared | Keyframe) -> list[Image.Image]:
    """One for each vision block that the encoder sees of a reference or keyframe; none of sound, or of what is not
    shown to it."""
    if item.pixels is None or not getattr(item, "show", True):
        return []
    if item.small is not None:
        return [Image.fromarray(picture.numpy()) for picture in item.small]
    frames = item.pixels[:: SAMPLE_STRIDE * TEMPORAL_PATCH] if item.pixels.dim() == 4 else item.pixels[None]
    return [_little(frame) for frame in frames]


def _little(pixels: torch.Tensor) -> Image.Image:
    """uint8 [H, W, 3] within LITTLE."""
    size = reduced((pixels.shape[1], pixels.shape[0]))
    picture = Image.fromarray(thinned(pixels, *size).contiguous().numpy())
    return picture if picture.size == size else picture.resize(size, Image.Resampling.LANCZOS)
