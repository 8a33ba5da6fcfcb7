"""CONDITIONING and LATENT as ComfyUI's H3 sampler reads them; the only place where those dicts are built.

Contract: `minimax_refs` blocks in request order, `minimax_keyframes` with resolved frame indices, a NestedTensor
latent of video [1, 24, T, H/16, W/16] and audio [1, 32, 2, T40]. Source: comfy/ldm/minimax/model.py and comfy_extras/
nodes_minimax_h3.py of ComfyUI >= 0.30. Latents exist only where a VAE is connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import comfy.model_management
import comfy.nested_tensor
import torch

from ...encoder import geometry
from .latents import AUDIO_CHANNELS, AUDIO_ROWS, SPATIAL, VIDEO_CHANNELS, encode_pixels, encode_waveform
from .references import Prepared, Target, checked_waveform, sampled_size, soundtrack_of

AUDIO_RATE = 32000  # of an audio VAE that does not name its own


def with_values(conditioning: Sequence, values: Mapping[str, Any]) -> list[list]:
    """A copy of the conditioning with `values` added to each entry."""
    return [[hidden, {**extras, **values}] for hidden, extras in conditioning]


def empty_latent(target: Target) -> dict[str, Any]:
    device = comfy.model_management.intermediate_device()
    rows, columns = target.height // SPATIAL, target.width // SPATIAL
    video = torch.zeros([1, VIDEO_CHANNELS, geometry.latent_frames(target.frames), rows, columns], device=device)
    audio = torch.zeros([1, AUDIO_CHANNELS, AUDIO_ROWS, geometry.audio_latent_frames(target.frames)], device=device)
    return {"samples": comfy.nested_tensor.NestedTensor((video, audio))}


# references


def reference_blocks(prepared: Iterable[Prepared], vae: Any, audio_vae: Any) -> list[dict[str, Any]]:
    """`minimax_refs`: one block per reference that has a latent. `picture_index` counts every picture."""
    blocks: list[dict[str, Any]] = []
    pictures = 0
    for reference in prepared:
        if reference.kind == "image":
            if vae is not None and not reference.vision_only:
                blocks.append(_image_block(reference, vae, pictures))
            pictures += 1
        elif not reference.vision_only:
            blocks += _sounding_blocks(reference, vae, audio_vae)
    return blocks


def _image_block(reference: Prepared, vae: Any, picture_index: int) -> dict[str, Any]:
    sides = sampled_size(reference.pixels)
    latent = encode_pixels(vae, geometry.resize(reference.pixels, *sides)[None])
    place = {"latent_h": sides[1] // SPATIAL, "latent_w": sides[0] // SPATIAL}
    return {"kind": "image", "picture_index": picture_index, **place, "latent": latent}


def _sounding_blocks(reference: Prepared, vae: Any, audio_vae: Any) -> list[dict[str, Any]]:
    if reference.kind == "audio":
        if audio_vae is None:
            return []
        sound = encode_sound(audio_vae, reference.sound, reference.where)
        return [{"kind": "audio", "ref_audio_t": sound.shape[-1], "audio_latent": sound}]
    return [] if vae is None else [_video_block(reference, vae, audio_vae)]


def _video_block(reference: Prepared, vae: Any, audio_vae: Any) -> dict[str, Any]:
    height, width = reference.pixels.shape[1:3]
    latent = encode_pixels(vae, reference.pixels)
    sound = None
    if reference.sound is not None and audio_vae is not None:
        sound = encode_sound(audio_vae, reference.sound, soundtrack_of(reference.where))
    return {
        "kind": "video" if sound is None else "video_audio",
        "latent_t": latent.shape[2],
        "latent_h": height // SPATIAL,
        "latent_w": width // SPATIAL,
        "ref_audio_t": 0 if sound is None else sound.shape[-1],
        "latent": latent,
        "audio_latent": sound,
    }


def encode_sound(audio_vae: Any, sound: Mapping[str, Any], where: str) -> torch.Tensor:
    """ComfyUI audio -> latent [1, 32, 2, T]. Raises ValueError naming `where` for a batch of several sounds, and
    audio_vae for one of another model."""
    waveform = checked_waveform(sound, where)
    rate = getattr(audio_vae, "audio_sample_rate", AUDIO_RATE)
    if sound["sample_rate"] != rate:
        import torchaudio  # comes with ComfyUI; needed for resampling alone

        waveform = torchaudio.functional.resample(waveform, int(sound["sample_rate"]), rate)
    return encode_waveform(audio_vae, waveform)
