"""What a node says about references: what arrived, what is used of it, and what that costs.

Contract: plain text lines, no sentence that is true of every request. Tokens are counted where they are paid: those of
the sampler ride through every step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...encoder.geometry import AUDIO_LATENTS_PER_SECOND, latent_frames
from ...encoder.pixels import FACTOR, FPS, SAMPLE_STRIDE, image_size, video_size
from .reference_limits import MOST_PICTURES, MOST_REFERENCES
from .references import Prepared, sampled_size, soundtrack_of

NO_VAE_REFERENCES = "no VAE: references condition the text only"
NO_VAE_SOUND = "no audio VAE: sounds condition the text only"
TIMED = "timed, which is no released form"
VIDEO_RULE_LINE = "videos by ComfyUI's rule: cut to the length asked for and to 17k + 5 frames, never enlarged"
MARKERS = 2  # of a vision block
PACE = 0.05  # how far the times of frames may be off their rate
NOTABLE = 0.15  # part of the pixels; what sides become multiples of 32 by is less
STEREO = 2  # rows of tokens for each latent frame of a sound


def reference_warnings(prepared: Sequence[Prepared], vae: object, audio_vae: object) -> list[str]:
    """That references reach the text alone, are more than the model was released with, or do not keep their rate."""
    meant = [r for r in prepared if not r.vision_only]
    lines = [*_crowded(prepared), *(line for r in prepared if r.kind == "video" for line in _off_pace(r))]
    lines += [NO_VAE_REFERENCES] if vae is None and any(r.kind != "audio" for r in meant) else []
    return lines + ([NO_VAE_SOUND] if audio_vae is None and any(r.sound is not None for r in meant) else [])


def _crowded(prepared: Sequence[Prepared]) -> list[str]:
    pictures = [r for r in prepared if r.kind == "image"]
    if len(pictures) <= MOST_PICTURES and len(prepared) <= MOST_REFERENCES:
        return []
    alone = sum(r.vision_only for r in pictures)
    return [
        f"{len(pictures)} pictures, {alone} of them vision only: the released model was given {MOST_PICTURES} pictures "
        f"and {MOST_REFERENCES} references at most; the text encoder reads {sum(map(_seen, pictures))} tokens of them"
    ]


def _off_pace(video: Prepared) -> list[str]:
    """Of a variable frame rate. Frames are used at the rate that the file names."""
    fps, played = video.given.fps, video.given.played
    if played is None or abs(fps / played - 1) <= PACE:
        return []
    return [
        f"{video.where} plays at another speed than its sound: its file names {fps:.4g} frames a second, and times "
        f"{played:.4g}; convert it to a constant frame rate"
    ]


def _seen(picture: Prepared) -> int:
    """Tokens of a picture in the text encoder, its label aside."""
    height, width = image_size(*picture.pixels.shape[:2])
    return height * width // FACTOR**2 + MARKERS


@dataclass(frozen=True)
class Said:
    """What a label stands for. where: the socket; said: what arrived, what is used; cost: tokens in every sampling
    step, None where the sampler is given no latent."""

    label: str
    where: str
    said: tuple[str, ...]
    cost: int | None
    vision_only: bool

    @property
    def text(self) -> str:
        if self.vision_only:
            cost = "vision only, no latent"
        else:
            cost = "no latent" if self.cost is None else f"{self.cost} tokens in every sampling step"
        return f"{self.where}: {'; '.join((*self.said, cost))}"


def described(prepared: Sequence[Prepared], size_mode: str, vae: object, audio_vae: object) -> list[Said]:
    """Every label in reading order."""
    found = []
    for label, where, reference in _labelled(prepared):
        if label.startswith("Audio"):
            said, given, tokens = [_about_sound(reference)], audio_vae, _sound_tokens(reference)
        elif reference.kind == "image":
            timed = [] if reference.timestamp is None else [f"<{reference.timestamp:.1f} seconds> ({TIMED})"]
            said, given, tokens = [_about_picture(reference, size_mode), *timed], vae, _picture_tokens(reference)
        else:
            said, given, tokens = [_about_video(reference)], vae, _video_tokens(reference)
        cost = None if given is None or reference.vision_only else tokens
        found.append(Said(label, where, tuple(said), cost, reference.vision_only))
    return found


def facts_of(said: Sequence[Said], prepared: Sequence[Prepared]) -> list[str]:
    """One line per label: what it stands for, what arrived, what is used, tokens in every sampling step."""
    lines = [f"{each.label} = {each.text}" for each in said]
    return lines + ([VIDEO_RULE_LINE] if any(r.kind == "video" for r in prepared) else [])


def riding(said: Sequence[Said]) -> str:
    """What all references together add to every sampling step; "" without any."""
    if not said:
        return ""
    costs = [each.cost for each in said if each.cost is not None]
    return f"{sum(costs):,} tokens" if costs else "none: no latent"


def about_sizes(prepared: Sequence[Prepared]) -> list[str]:
    """One line of all that the encoder sees much smaller or larger than it arrived, and by how much."""
    found = [(label, _area(r) / (r.given.width * r.given.height)) for label, _, r in _labelled(prepared) if r.given]
    pixels = [(label, part) for label, part in found if not label.startswith("Audio")]
    smaller = ", ".join(f"{label} at {100 * part:.2g} %" for label, part in pixels if part < 1 - NOTABLE)
    larger = ", ".join(f"{label} at {part:.2g} times" for label, part in pixels if part > 1 + NOTABLE)
    lines = [f"seen smaller than it arrived: {smaller} of its pixels"] if smaller else []
    return lines + ([f"seen larger than it arrived: {larger} its pixels"] if larger else [])


def _area(reference: Prepared) -> int:
    """Pixels of one picture or frame, as the encoder sees it."""
    shape = reference.pixels.shape
    frames = len(range(0, shape[0], SAMPLE_STRIDE))
    height, width = image_size(*shape[:2]) if reference.kind == "image" else video_size(frames, *shape[1:3])
    return height * width


def _labelled(prepared: Sequence[Prepared]) -> Iterator[tuple[str, str, Prepared]]:
    """(label as in the prompt, what it stands for, reference) in reading order; a soundtrack before its video."""
    count: Counter[str] = Counter()

    def label(kind: str) -> str:
        count[kind] += 1
        return f"{kind} {count[kind]}"

    for reference in prepared:
        if reference.kind == "video" and reference.sound is not None:
            yield label("Audio"), soundtrack_of(reference.where), reference
        name = {"image": "Picture", "video": "Video", "audio": "Audio"}[reference.kind]
        yield label(name), reference.where, reference


def _about_picture(reference: Prepared, size_mode: str) -> str:
    given, (height, width) = reference.given, reference.pixels.shape[:2]
    return f"{_change(given.width, given.height, width, height)} ({size_mode})"


def _change(given_width: int, given_height: int, width: int, height: int) -> str:
    given = f"{given_width}x{given_height}"
    if (given_width, given_height) == (width, height):
        return f"{given} as it is"
    how = "shrunk" if width * height < given_width * given_height else "enlarged"
    return f"{given} {how} to {width}x{height}"


def _about_video(reference: Prepared) -> str:
    given, (frames, height, width) = reference.given, reference.pixels.shape[:3]
    size = _change(given.width, given.height, width, height)
    of = f"{given.frames} at {given.fps:g} fps ({given.frames / given.fps:.1f} s)"
    return f"{frames} frames ({frames / FPS:.1f} s) used of {of}; {size}"


def _about_sound(reference: Prepared) -> str:
    seconds = _seconds(reference)
    return f"{seconds:.1f} s, used whole"


def _seconds(reference: Prepared) -> float:
    return reference.sound["waveform"].shape[-1] / reference.sound["sample_rate"]


def _picture_tokens(reference: Prepared) -> int:
    width, height = sampled_size(reference.pixels)
    return width * height // FACTOR**2


def _video_tokens(reference: Prepared) -> int:
    frames, height, width = reference.pixels.shape[:3]
    return latent_frames(frames) * height * width // FACTOR**2


def _sound_tokens(reference: Prepared) -> int:
    return STEREO * math.ceil(_seconds(reference) * AUDIO_LATENTS_PER_SECOND)
