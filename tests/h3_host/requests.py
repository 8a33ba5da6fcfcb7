"""The requests on which our nodes and the host's must agree, made with both; CONDITIONING and LATENT of each.

Contract: every case is one whose geometry is the same by both rules: pictures that have the canvas' size or need plain
scaling, videos of 2 s and more, sounds at the audio VAE's rate. `REFERENCES` and `KEYFRAMES` map a name to keyword
arguments of the node; `ours(name, clip)` and `theirs(h3, name, clip)` give (CONDITIONING, LATENT).
"""

from __future__ import annotations

from typing import Any

import torch
from h3te_tests.comfy_host import picture

from .located_vaes import LocatedAudioVAE, LocatedVAE

PROMPT = "a fox says <d>hi</d> near <Picture 1>"
SIZE = {"width": 64, "height": 96, "length": 22}
LONG = {**SIZE, "length": 56}


def noise(seed: int, seconds: float) -> dict[str, Any]:
    """A sound whose every sample differs, at the audio VAE's own rate."""
    wave = torch.rand(1, 2, int(seconds * 32000), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return {"waveform": wave, "sample_rate": 32000}


def frame(seed: int) -> torch.Tensor:
    """A picture of the canvas' size."""
    return picture(seed, SIZE["height"], SIZE["width"])


def images(*pictures: torch.Tensor) -> dict[str, Any]:
    return {"ref_images": {f"ref_image_{i}": each for i, each in enumerate(pictures)}}


SMALL, LARGE = picture(1, 64, 64), picture(2, 160, 120)
CLIP = picture(3, 64, 96, batch=50)
VIDEO = {**LONG, "ref_videos": {"ref_video_0": CLIP}}
SOUNDTRACK = {"ref_video_audios": {"ref_video_audio_0": noise(4, 1.0)}}
SOUND = {"ref_audios": {"ref_audio_0": noise(5, 0.5)}}

REFERENCES: dict[str, dict[str, Any]] = {
    "prompt": SIZE,
    "image": {**SIZE, **images(SMALL)},
    "two images": {**SIZE, **images(SMALL, LARGE)},
    "two images, max": {**SIZE, **images(SMALL, LARGE), "ref_image_size": "max"},
    "silent video": VIDEO,
    "video with soundtrack": {**VIDEO, **SOUNDTRACK},
    "image and sound": {**SIZE, **images(SMALL), **SOUND},
    "image, video with soundtrack, sound": {**VIDEO, **images(SMALL), **SOUNDTRACK, **SOUND},
}
KEYFRAMES: dict[str, dict[str, Any]] = {
    "text": SIZE,
    "first frame": {**SIZE, "first_frame": frame(1)},
    "last frame": {**SIZE, "last_frame": frame(2)},
    "first and last frame": {**SIZE, "first_frame": frame(1), "last_frame": frame(2)},
    "first frame, stretched": {**SIZE, "first_frame": picture(3, 160, 160)},
}
CASES = [*REFERENCES, *KEYFRAMES]


def vaes(name: str) -> dict[str, Any]:
    audio = {"audio_vae": LocatedAudioVAE()} if name in REFERENCES else {}
    return {"vae": LocatedVAE(), **audio}


def ours(name: str, clip: Any, **changes: Any) -> tuple[list, dict]:
    """Of our node, for one prompt; `changes` replace or add inputs."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.encode_references import EncodeReferences

    node = EncodeReferences if name in REFERENCES else EncodeKeyframes
    given = {"prompt": PROMPT, **vaes(name), **(REFERENCES | KEYFRAMES)[name], **changes}
    (positive,), (latent,), *_ = node.execute(clip=clip, **given).args
    return positive, latent


def theirs(h3: Any, name: str, clip: Any) -> tuple[list, dict]:
    """Of the host's own node with the same CLIP."""
    node = h3.MiniMaxH3ReferenceToVideo if name in REFERENCES else h3.MiniMaxH3ImageToVideo
    return node.execute(clip=clip, prompt=PROMPT, **vaes(name), **(REFERENCES | KEYFRAMES)[name]).args[:2]
