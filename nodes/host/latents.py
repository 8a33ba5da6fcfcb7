"""What a VAE gave back, checked: a VAE of another model encodes without a word, and the sampler fails steps later.

Contract: latents of MiniMax H3's own VAEs are [1, 24, T, H/16, W/16] of pictures and [1, 32, 2, T] of sound, at 40 a
second. Errors name the input.
"""

from __future__ import annotations

from typing import Any

import torch

from ...encoder import geometry
from .images import to_image
from .stop import heed_stop

VIDEO_CHANNELS, AUDIO_CHANNELS, AUDIO_ROWS = 24, 32, 2
SPATIAL = 16  # pixels per latent cell


def encode_pixels(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [T, H, W, 3], T = 1 or 17k + 5, sides multiples of 32 -> latent [1, 24, t, H/16, W/16]. Raises ValueError
    naming vae for a latent of another shape."""
    heed_stop()
    latent = vae.encode(to_image(pixels))
    frames, height, width, _ = pixels.shape
    steps = 1 if frames == 1 else geometry.latent_frames(frames)
    shape = [1, VIDEO_CHANNELS, steps, height // SPATIAL, width // SPATIAL]
    if not isinstance(latent, torch.Tensor) or list(latent.shape) != shape:
        raise _wrong("vae", "video", shape, latent)
    return latent


def encode_waveform(audio_vae: Any, waveform: torch.Tensor) -> torch.Tensor:
    """[1, C, L] at the VAE's own rate -> latent [1, 32, 2, T]. Raises ValueError naming audio_vae for a latent of
    another shape."""
    heed_stop()
    latent = audio_vae.encode(waveform.movedim(1, -1))
    shape = [1, AUDIO_CHANNELS, AUDIO_ROWS]
    if (
        not isinstance(latent, torch.Tensor)
        or latent.dim() != 4
        or list(latent.shape[:3]) != shape
        or 0 in latent.shape
    ):
        raise _wrong("audio_vae", "audio", [*shape, "T"], latent)
    return latent


def _wrong(socket: str, kind: str, shape: list, latent: Any) -> ValueError:
    tensor = isinstance(latent, torch.Tensor)
    got = f"a latent of shape {list(latent.shape)}" if tensor else f"a latent of type {type(latent).__name__}"
    expected = ", ".join(map(str, shape))
    return ValueError(
        f"{socket}: expected the {kind} VAE of MiniMax H3, whose latent is [{expected}] here, got {got}. Connect "
        f"minimax_h3_{kind}_vae."
    )
