"""Stand-in VAEs whose latents tell where a pixel or a sample lies, so that a crop, a shift or another order shows.

Contract: the shapes of H3's VAEs. IMAGE [T, H, W, 3] -> [1, 24, t, H/16, W/16], t = 1 for one picture and
5k + 2 for 17k + 5 frames; waveform [1, L, C] -> [1, 32, 2, L/800].
"""

from __future__ import annotations

import torch

CELL, CHANNELS, AUDIO_CHANNELS = 16, 24, 32
FRAMES = (1, 4, 4, 4, 4)  # pixel frames of the latent frames, over and over; the first of a clip stands alone
SAMPLES = 800  # of 32 kHz, 40 latent frames a second


def _mixing(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) / columns**0.5


class LocatedVAE:
    """Each cell holds its own 16 x 16 pixels, mixed by a fixed matrix, over the frames of its latent frame."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        frames, height, width, _ = pixels.shape
        cells = pixels.reshape(frames, height // CELL, CELL, width // CELL, CELL, 3).permute(0, 1, 3, 2, 4, 5)
        mixed = (cells.flatten(3) - 0.5) @ _mixing(CHANNELS, CELL * CELL * 3).T  # [T, h, w, 24]
        steps = [chunk.mean(0) for chunk in mixed.split(_spans(frames))]
        return torch.stack(steps).permute(3, 0, 1, 2)[None].contiguous()


class LocatedAudioVAE:
    """Each latent frame holds its own 800 samples of both channels."""

    audio_sample_rate = 32000

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        count = max(1, waveform.shape[1] // SAMPLES)
        padded = torch.zeros(count * SAMPLES, 2)
        kept = waveform[0, : len(padded), :2]
        padded[: len(kept)] = kept
        mixed = padded.T.reshape(2, count, SAMPLES) @ _mixing(AUDIO_CHANNELS, SAMPLES).T
        return mixed.permute(2, 0, 1)[None].contiguous()


def _spans(frames: int) -> list[int]:
    if frames == 1:
        return [1]
    steps = 2 if frames == 5 else (frames - 5) // 17 * 5 + 2
    spans = [FRAMES[i % len(FRAMES)] for i in range(steps)]
    assert sum(spans) == frames, f"a clip of {frames} frames is not on the grid of 17k + 5"
    return spans
