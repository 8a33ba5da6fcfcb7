"""What a request with references must become, for tests that compare CONDITIONING key by key. Written from the released
rules and on PIL alone: nothing of the pack's own geometry, frame or block code is called.

Contract: a request is a list of `Given`. `expected_references` are the encoder's own references, `expected_blocks` the
`minimax_refs` for stand-in VAEs, `expected_labels` the text before the prompt without the vision blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

SHORT_EDGE = 128  # stands for 2048, and below for 768 and 768 * 1344, so that the tests are quick
CANVAS_EDGE, CANVAS_PIXELS = 64, 64 * 112


@dataclass(frozen=True, eq=False)
class Given:
    """pixels uint8 [T, H, W, 3] of a picture (T = 1) or video at `fps`, None of a sound; sound: (seconds, rate)."""

    kind: str
    pixels: torch.Tensor | None = None
    fps: int = 24
    sound: dict[str, Any] | None = None
    vision_only: bool = False
    second: float | None = None


class CellVAE:
    """Each latent cell is the mean of its 16 x 16 pixels in the first frame; the time steps of the real VAE."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        frames, height, width, _ = pixels.shape
        steps = 1 if frames == 1 else (frames - 5) // 17 * 5 + 2
        cells = pixels[0].reshape(height // 16, 16, width // 16, 16, 3).mean(dim=(1, 3, 4))
        return cells.expand(1, 24, steps, -1, -1).clone()


def to_32(side: float) -> int:
    return max(32, round(side / 32) * 32)


def picture_size(width: int, height: int, mode: str, target: tuple[int, int]) -> tuple[int, int]:
    scales = {
        "match": min(1.0, math.sqrt(target[0] * target[1] / (width * height))),
        "max": min(1.0, SHORT_EDGE / min(width, height)),
        "official": SHORT_EDGE / min(width, height),
    }
    return (width, height) if mode == "none" else (to_32(width * scales[mode]), to_32(height * scales[mode]))


def video_size(width: int, height: int) -> tuple[int, int]:
    """The canvas of the video's own sides, unless it has fewer pixels than that."""
    ratio = width / height
    wide, high = (CANVAS_EDGE * ratio, CANVAS_EDGE) if ratio >= 1 else (CANVAS_EDGE, CANVAS_EDGE / ratio)
    shrink = min(1.0, math.sqrt(CANVAS_PIXELS / (wide * high)))
    canvas = to_32(wide * shrink), to_32(high * shrink)
    return (to_32(width), to_32(height)) if width * height < canvas[0] * canvas[1] else canvas


def scaled(frame: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.fromarray(frame.numpy()).resize(size, Image.Resampling.LANCZOS)))


def prepared(given: Given, mode: str, target: tuple[int, int], frames: int) -> torch.Tensor:
    """uint8 [T, H, W, 3] as both the encoder and the VAE get it."""
    height, width = given.pixels.shape[1:3]
    if given.kind == "picture":
        return scaled(given.pixels[0], picture_size(width, height, mode, target))[None]
    at_24 = given.pixels.repeat_interleave(24 // given.fps, dim=0)[:frames]
    kept = at_24[: 5 + (len(at_24) - 5) // 17 * 17]
    return torch.stack([scaled(frame, video_size(width, height)) for frame in kept])


def expected_references(
    request: Sequence[Given], encoder: Any, mode: str, target: tuple[int, int], frames: int
) -> list:
    """encoder: the module with the public reference classes."""
    found = []
    for given in request:
        if given.kind == "sound":
            found.append(encoder.AudioReference())
        elif given.kind == "picture":
            timed = {} if given.second is None else {"timestamp": given.second}
            found.append(encoder.ImageReference(prepared(given, mode, target, frames)[0], **timed))
        else:
            pixels = prepared(given, mode, target, frames)
            found.append(encoder.VideoReference(pixels, has_audio=given.sound is not None))
    return found


def expected_labels(request: Iterable[Given], frames: int) -> str:
    """The labels in reading order; `frames` of every video, so that its pairs are known."""
    count: Counter[str] = Counter()

    def label(kind: str) -> str:
        count[kind] += 1
        return f"<{kind} {count[kind]}>: "

    text = ""
    for given in request:
        if given.kind == "picture":
            text += label("Picture") + ("" if given.second is None else f"<{given.second:.1f} seconds>")
        elif given.kind == "sound":
            text += label("Audio")
        else:
            text += (label("Audio") if given.sound is not None else "") + label("Video") + pair_times(frames)
    return text


def pair_times(frames: int) -> str:
    times = [i / 2 for i in range(math.ceil(frames / 12))]
    times += times[-1:] * (len(times) % 2)
    return "".join(f"<{(a + b) / 2:.1f} seconds>" for a, b in zip(times[::2], times[1::2], strict=True))


def expected_blocks(
    request: Iterable[Given], mode: str, target: tuple[int, int], frames: int, vae: bool, audio_vae: bool
) -> list[dict[str, Any]]:
    blocks, pictures = [], 0
    for given in request:
        pictures += given.kind == "picture"
        if given.vision_only or not (audio_vae if given.kind == "sound" else vae):
            continue
        if given.kind == "sound":
            blocks.append({"kind": "audio", **heard(given)})
            continue
        pixels = prepared(given, mode, target, frames)
        if given.kind == "picture":  # size mode "none" may miss the grid of the sampler
            size = to_32(pixels.shape[2]), to_32(pixels.shape[1])
            pixels = scaled(pixels[0], size)[None]
            blocks.append({"kind": "image", "picture_index": pictures - 1, **seen(pixels)})
            continue
        sounding = given.sound is not None and audio_vae
        sound = heard(given) if sounding else {"ref_audio_t": 0, "audio_latent": None}
        latent_t = (len(pixels) - 5) // 17 * 5 + 2
        blocks.append({"kind": "video_audio" if sounding else "video", "latent_t": latent_t, **seen(pixels), **sound})
    return blocks


def seen(pixels: torch.Tensor) -> dict[str, Any]:
    height, width = pixels.shape[1:3]
    latent = CellVAE().encode(pixels.float() / 255)
    return {"latent_h": height // 16, "latent_w": width // 16, "latent": latent}


def heard(given: Given) -> dict[str, Any]:
    """40 latent frames a second; the stand-in fills them with the mean, which resampling keeps roughly."""
    waveform = given.sound["waveform"]
    steps = round(waveform.shape[-1] / given.sound["sample_rate"] * 40)
    return {"ref_audio_t": steps, "audio_latent": torch.full((1, 32, 2, steps), float(waveform.mean()))}
