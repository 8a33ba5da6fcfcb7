"""References as they come from sockets and chains -> what the text encoder and the VAE are given.

Contract: within the limits of the released model; prepared once by the rules of encoder/geometry.py (LANCZOS on uint8);
encoder and VAE get the same pixels. Videos follow ComfyUI's rule: cut to the target's length and to 17k + 5 frames,
never enlarged; a sound is used whole. Errors name the socket. An outline (`outlines=True`) is the same without pixels:
what is asked for is known from sizes, and nothing is resized.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch

from ...encoder import geometry
from ...encoder.pixels import SAMPLE_STRIDE, SAMPLES_PER_SECOND, TEMPORAL_PATCH
from ..chains import AudioItem, ImageItem, Reference, VideoItem
from ..colours import RGB
from .images import WHITE, checked, each, to_image
from .known_pictures import Source
from .outline import blank, little
from .preparing import told
from .reference_limits import check_aspect, check_counts, check_together
from .reference_videos import VIDEO_RULE, count_used, frames_given, used_frames, used_indices
from .stop import heed_stop

MAX_SIDE = 16384  # ComfyUI's own limits of width, height and length
MAX_FRAMES = 3600


@dataclass(frozen=True)
class Target:
    """The video that is asked for: canvas in pixels, length in frames, all on the model's grid."""

    width: int
    height: int
    frames: int


@dataclass(frozen=True)
class Given:
    """What arrived, for people: size in pixels; frames and their rates of a video."""

    width: int
    height: int
    frames: int = 1
    fps: float = 0.0
    played: float | None = None  # frames per second by their own times, which may be another rate


@dataclass(frozen=True, eq=False)
class Prepared:
    """One reference. pixels: uint8 [H, W, 3], [T, H, W, 3], or None for sound; sound: ComfyUI audio or None. small: of
    an outline, whose pixels are blank: what each vision block shows, in little, uint8 [blocks, h, w, 3]. source: what
    its vision blocks are made of."""

    kind: str  # "image", "video", "audio"
    where: str
    pixels: torch.Tensor | None = None
    sound: Mapping[str, Any] | None = None
    vision_only: bool = False
    timestamp: float | None = None
    given: Given | None = None
    small: torch.Tensor | None = None
    source: Source | None = None


def resolve_target(width: float, height: float, length: float) -> Target:
    """The nearest canvas of multiples of 32 and the next length of 17k + 5 frames. Raises ValueError naming the input
    for what its widget would not take: a link brings anything."""
    given = {"width": width, "height": height}
    width, height = (_number(side, name, "pixels", geometry.MULTIPLE, MAX_SIDE) for name, side in given.items())
    length = _number(length, "length", "frames", geometry.FIRST_FRAMES, MAX_FRAMES)
    sides = (round(side / geometry.MULTIPLE) * geometry.MULTIPLE for side in (width, height))
    return Target(*sides, geometry.snap_frames(length))


def _number(value: Any, name: str, unit: str, least: int, most: int) -> float:
    """A finite number within the widget's range, the same value. NaN is in no range."""
    if isinstance(value, bool) or not (isinstance(value, Real) and least <= value <= most):
        got = value if isinstance(value, Real) or value is None else type(value).__name__
        raise ValueError(
            f"{name}: expected a number of {unit} from {least} to {most}, got {got}. Correct it, or unlink the input."
        )
    return value


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


def prepare(
    items: Sequence[Reference], target: Target, size_mode: str, background: RGB = WHITE, outlines: bool = False
) -> list[Prepared]:
    """Every item in order; each picture of an image batch is a reference of its own. What is too many, too long or of
    no use is refused before any pixel is converted, as ValueError naming the socket. outlines: sizes alone."""
    check_counts(items)
    counts = [count_used(item, target.frames) if isinstance(item, VideoItem) else 0 for item in items]
    check_together([(item.where, n) for item, n in zip(items, counts, strict=True) if n])
    prepared: list[Prepared] = []
    for item, count in zip(items, counts, strict=True):
        if isinstance(item, ImageItem):
            prepared += _images(item, target, size_mode, background, outlines)
        elif isinstance(item, VideoItem):
            made = _video_outline(item, count, background) if outlines else _video(item, count, background)
            blocks = math.ceil(count / (SAMPLE_STRIDE * TEMPORAL_PATCH))
            how = (count, item.fps, background)
            prepared.append(replace(made, source=Source(item.frames, "video", how, blocks)))
        else:
            checked_waveform(item.audio, item.where)
            prepared.append(Prepared("audio", item.where, sound=item.audio, vision_only=item.vision_only))
    return prepared


def checked_waveform(sound: Any, where: str) -> torch.Tensor:
    """The waveform [1, C, L] of ComfyUI audio. Raises ValueError naming `where` for anything else: batches, no samples,
    integers, NaN, no sample rate."""
    waveform = sound.get("waveform") if isinstance(sound, Mapping) else None
    if not isinstance(waveform, torch.Tensor) or waveform.dim() != 3 or len(waveform) != 1 or 0 in waveform.shape:
        got = f"waveform {list(waveform.shape)}" if isinstance(waveform, torch.Tensor) else type(sound).__name__
        raise ValueError(f"{where}: expected AUDIO with one waveform [1, C, L], got {got}. Connect a single sound.")
    if not waveform.is_floating_point():
        raise ValueError(
            f"{where}: expected AUDIO in floats from -1 to 1, got {waveform.dtype}. Load it with Load Audio."
        )
    if not bool(waveform.isfinite().all()):
        raise ValueError(f"{where}: expected finite sound, got NaN or infinity. Check the node that made it.")
    rate = sound.get("sample_rate")
    if not (isinstance(rate, Real) and 1 <= rate < math.inf and float(rate).is_integer()):
        raise ValueError(f"{where}: expected AUDIO with a sample rate in Hz, got {rate}. Check the node that made it.")
    return waveform


def _images(item: ImageItem, target: Target, size_mode: str, background: RGB, outlines: bool) -> list[Prepared]:
    check_aspect(item.pixels, item.where)
    pictures = checked(item.pixels, item.where) if outlines else each(item.pixels, item.where, background)
    numbers = [""] if len(pictures) == 1 else [f", {i} of {len(pictures)}" for i in range(1, len(pictures) + 1)]
    return [
        replace(
            _image(picture, item, item.where + number, target, size_mode, background if outlines else None),
            source=Source(item.pixels, "image", (i, size_mode, target, background), 1),
        )
        for i, (picture, number) in enumerate(zip(pictures, numbers, strict=True))
    ]


def _image(
    pixels: torch.Tensor, item: ImageItem, where: str, target: Target, size_mode: str, background: RGB | None
) -> Prepared:
    """background: of an outline, whose pixels are as they arrived; None for those to prepare."""
    height, width = pixels.shape[:2]
    size = geometry.reference_image_size(width, height, size_mode, target.width, target.height)
    heed_stop()
    if background is None:
        told(f"resizing {where}")
    fitted = blank(*size) if background else geometry.resize(pixels, *size, where=where)
    small = little(pixels[None], size, where, background) if background else None
    return Prepared("image", where, fitted, None, item.vision_only, item.timestamp, Given(width, height), small)


def _video(item: VideoItem, count: int, background: RGB) -> Prepared:
    if item.soundtrack is not None:
        checked_waveform(item.soundtrack, soundtrack_of(item.where))
    frames = used_frames(item, count, background)
    height, width = frames.shape[1:3]
    told(f"resizing {item.where}, {len(frames)} frames")
    size = geometry.reference_video_size(width, height, VIDEO_RULE)
    fitted = geometry.resize_frames(frames, *size, where=item.where, before_each=heed_stop)
    given = Given(width, height, frames_given(item), item.fps, item.played)
    return Prepared("video", item.where, fitted, item.soundtrack, item.vision_only, given=given)


def _video_outline(item: VideoItem, count: int, background: RGB) -> Prepared:
    if item.soundtrack is not None:
        checked_waveform(item.soundtrack, soundtrack_of(item.where))
    checked(item.frames, item.where)
    height, width = item.frames.shape[1:3]
    size = geometry.reference_video_size(width, height, VIDEO_RULE)
    picks = used_indices(item, count)[:: SAMPLE_STRIDE * TEMPORAL_PATCH]  # the first frame of each block
    small = little(item.frames, size, item.where, background, picks)
    given = Given(width, height, frames_given(item), item.fps, item.played)
    return Prepared("video", item.where, blank(*size, count), item.soundtrack, item.vision_only, None, given, small)


def soundtrack_of(where: str) -> str:
    """What the sound of a video is called in messages."""
    return f"soundtrack of {where}"


def sampled_size(pixels: torch.Tensor) -> tuple[int, int]:
    """Width and height at which the VAE gets a picture [H, W, 3]: as prepared, but on the sampler's grid of 32, which
    size mode "none" may miss."""
    height, width = pixels.shape[:2]
    return geometry.reference_image_size(width, height, "match", width, height)


def ref_items(prepared: Iterable[Prepared]) -> list[dict[str, Any]]:
    """The references as `CLIP.tokenize(minimax_ref_items=)` of every H3 CLIP reads them; of outlines as `host/outline`
    does, whose blank pixels stay as they are."""
    items: list[dict[str, Any]] = []
    for reference in prepared:
        if reference.kind == "image":
            timed = {} if reference.timestamp is None else {"timestamp": reference.timestamp}
            items.append({"type": "image", "data": _shown(reference, reference.pixels[None]), **timed})
        elif reference.kind == "audio" or reference.sound is not None:
            items.append({"type": "audio"})
        if reference.kind == "video":
            seen = reference.pixels[::SAMPLE_STRIDE]
            times = [i / SAMPLES_PER_SECOND for i in range(len(seen))]
            items.append({"type": "video", "data": _shown(reference, seen), "timestamps": times})
    return items


def _shown(reference: Prepared, pixels: torch.Tensor) -> torch.Tensor:
    return to_image(pixels) if reference.small is None else pixels
