"""References as they come from sockets and chains -> what the text encoder and the VAE are given.

Contract: prepared once by the rules of encoder/geometry.py (LANCZOS on uint8); encoder and VAE get the same pixels.
Videos follow ComfyUI's rule: cut to the target's length and to 17k + 5 frames, never enlarged. Errors name the
socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...encoder import geometry
from ...encoder.pixels import FPS, SAMPLE_STRIDE, SAMPLES_PER_SECOND, resample_indices
from ..chains import AudioItem, ImageItem, Reference, VideoItem
from ..colours import RGB
from .images import WHITE, each, to_image, to_rgb

VIDEO_RULE = "host"


@dataclass(frozen=True)
class Target:
    """The video that is asked for: canvas in pixels, length in frames, all on the model's grid."""

    width: int
    height: int
    frames: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """One reference. pixels: uint8 [H, W, 3], [T, H, W, 3], or None for sound; sound: ComfyUI audio or None."""

    kind: str  # "image", "video", "audio"
    where: str
    pixels: torch.Tensor | None = None
    sound: Mapping[str, Any] | None = None
    vision_only: bool = False
    timestamp: float | None = None


def resolve_target(width: int, height: int, length: int) -> Target:
    """The nearest canvas of multiples of 32 and the next length of 17k + 5 frames."""
    sides = (max(geometry.MULTIPLE, round(side / geometry.MULTIPLE) * geometry.MULTIPLE) for side in (width, height))
    return Target(*sides, geometry.snap_frames(length))


def socket_items(
    images: Mapping[int, Any], videos: Mapping[int, Any], soundtracks: Mapping[int, Any], sounds: Mapping[int, Any]
) -> list[Reference]:
    """The linked sockets in request order: images, videos each with the soundtrack of its number, sounds."""
    lost = sorted(set(soundtracks) - set(videos))
    if lost:
        raise ValueError(
            f"ref_video_audio_{lost[0]}: expected a reference video on ref_video_{lost[0]}, got none. "
            "Connect the video, or move the sound to ref_audios."
        )
    found: list[Reference] = [_image_item(value, f"ref_image_{i}") for i, value in images.items()]
    found += [VideoItem(v, soundtrack=soundtracks.get(i), where=f"ref_video_{i}") for i, v in videos.items()]
    return found + [AudioItem(value, where=f"ref_audio_{i}") for i, value in sounds.items()]


def _image_item(value: Any, where: str) -> ImageItem:
    # MINIMAX_H3_REFERENCE_IMAGE of newer hosts: a picture for the text encoder alone
    marked = isinstance(value, Mapping)
    return ImageItem(value.get("image") if marked else value, vision_only=marked, where=where)


def prepare(items: Iterable[Reference], target: Target, size_mode: str, background: RGB = WHITE) -> list[Prepared]:
    """Every item in order; each picture of an image batch is a reference of its own."""
    prepared: list[Prepared] = []
    for item in items:
        if isinstance(item, ImageItem):
            prepared += [
                _image(pixels, item, target, size_mode) for pixels in each(item.pixels, item.where, background)
            ]
        elif isinstance(item, VideoItem):
            prepared.append(_video(item, target, background))
        else:
            checked_waveform(item.audio, item.where)
            prepared.append(Prepared("audio", item.where, sound=item.audio, vision_only=item.vision_only))
    return prepared


def checked_waveform(sound: Any, where: str) -> torch.Tensor:
    """The waveform [1, C, L] of ComfyUI audio. Raises ValueError naming `where` for anything else, batches included."""
    waveform = sound.get("waveform") if isinstance(sound, Mapping) else None
    if not isinstance(waveform, torch.Tensor) or waveform.dim() != 3 or len(waveform) != 1:
        got = f"waveform {list(waveform.shape)}" if isinstance(waveform, torch.Tensor) else type(sound).__name__
        raise ValueError(f"{where}: expected AUDIO with one waveform [1, C, L], got {got}. Connect a single sound.")
    return waveform


def _image(pixels: torch.Tensor, item: ImageItem, target: Target, size_mode: str) -> Prepared:
    height, width = pixels.shape[:2]
    size = geometry.reference_image_size(width, height, size_mode, target.width, target.height)
    fitted = geometry.resize(pixels, *size, where=item.where)
    return Prepared("image", item.where, fitted, vision_only=item.vision_only, timestamp=item.timestamp)


def _video(item: VideoItem, target: Target, background: RGB) -> Prepared:
    if item.soundtrack is not None:
        checked_waveform(item.soundtrack, f"soundtrack of {item.where}")
    frames = to_rgb(item.frames, item.where, background)
    if item.fps != FPS:
        frames = frames[torch.tensor(resample_indices(len(frames), item.fps, where=item.where))]
    if len(frames) < geometry.FIRST_FRAMES:
        raise ValueError(
            f"{item.where}: expected a reference video of at least {geometry.FIRST_FRAMES} frames at {FPS} fps, "
            f"got {len(frames)}. Use a longer clip, or connect it as a reference image."
        )
    kept = frames[: geometry.reference_video_frames(len(frames), target.frames, VIDEO_RULE)]
    size = geometry.reference_video_size(kept.shape[2], kept.shape[1], VIDEO_RULE)
    fitted = geometry.resize_frames(kept, *size, where=item.where)
    return Prepared("video", item.where, fitted, item.soundtrack, item.vision_only)


def ref_items(prepared: Iterable[Prepared]) -> list[dict[str, Any]]:
    """The references as `CLIP.tokenize(minimax_ref_items=)` of every H3 CLIP reads them."""
    items: list[dict[str, Any]] = []
    for reference in prepared:
        if reference.kind == "image":
            timed = {} if reference.timestamp is None else {"timestamp": reference.timestamp}
            items.append({"type": "image", "data": to_image(reference.pixels)[None], **timed})
        elif reference.kind == "audio" or reference.sound is not None:
            items.append({"type": "audio"})
        if reference.kind == "video":
            seen = reference.pixels[::SAMPLE_STRIDE]
            times = [i / SAMPLES_PER_SECOND for i in range(len(seen))]
            items.append({"type": "video", "data": to_image(seen), "timestamps": times})
    return items
