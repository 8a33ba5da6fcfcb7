"""A node for the tests of whole workflows: VAEs without weights, for encode nodes that ask for one.

Not part of the pack. Latents have the shapes of H3's VAEs (video [1, 24, T, H/16, W/16], sound [1, 32, 2, T40]); their
values are means of the pixels or samples that they stand for.
"""

import torch

CELL, CHANNELS = 16, 24
SAMPLE_RATE, SAMPLES = 32000, 800


class StandInVideoVAE:
    def encode(self, pixels):
        """IMAGE [T, H, W, 3], T = 1 or 17k + 5."""
        frames, height, width, _ = pixels.shape
        steps = 1 if frames == 1 else (frames - 5) // 17 * 5 + 2
        cells = pixels[..., :3].reshape(frames, height // CELL, CELL, width // CELL, CELL, 3).mean((2, 4, 5))
        shown = cells[torch.linspace(0, frames - 1, steps).round().long()]
        return shown[None, None].expand(1, CHANNELS, -1, -1, -1).contiguous()


class StandInAudioVAE:
    audio_sample_rate = SAMPLE_RATE

    def encode(self, waveform):
        """[1, L, C]."""
        count = max(1, waveform.shape[1] // SAMPLES)
        level = waveform[0, : count * SAMPLES].mean(-1)
        level = torch.nn.functional.pad(level, (0, count * SAMPLES - len(level)))
        return level.reshape(count, SAMPLES).mean(1).expand(1, 32, 2, count).contiguous()


class StandInVAELoader:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": (["video", "audio"],)}}

    RETURN_TYPES = ("VAE",)
    FUNCTION = "load"
    CATEGORY = "testing"

    def load(self, kind):
        return (StandInVideoVAE() if kind == "video" else StandInAudioVAE(),)


NODE_CLASS_MAPPINGS = {"H3TEStandInVAE": StandInVAELoader}
