"""Nodes for the check of the bundled workflows: VAEs without weights, and what a CONDITIONING and a LATENT hold.

Not part of the pack. The VAEs give latents of the shapes that H3's own have; `describe` names every key, shape and
type, and a digest of integers, which no rounding can touch.
"""

import hashlib
import json

import torch


class VideoVAE:
    """24 channels, a sixteenth of each side, 5 latent frames for 17 after the first 5."""

    def encode(self, pixels):
        frames, height, width, _ = pixels.shape
        steps = 1 if frames == 1 else (frames - 5) // 17 * 5 + 2
        return torch.full((1, 24, steps, height // 16, width // 16), float(pixels.mean()))


class AudioVAE:
    """32 channels, two rows, 40 latent frames a second."""

    audio_sample_rate = 32000

    def encode(self, waveform):
        return torch.full((1, 32, 2, max(1, round(waveform.shape[1] / 800))), float(waveform.mean()))


class StandInVAE:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": (["video", "audio"],)}}

    RETURN_TYPES = ("VAE",)
    FUNCTION = "make"
    CATEGORY = "testing"

    def make(self, kind):
        return (VideoVAE() if kind == "video" else AudioVAE(),)


class ConditioningShapes:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING",), "latent": ("LATENT",)}}

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "write"
    CATEGORY = "testing"

    def write(self, conditioning, latent):
        found = {"conditioning": describe(conditioning), "latent": describe(latent["samples"])}
        return {"ui": {"text": [json.dumps(found)]}}


def describe(value):
    """Plain JSON: tensors as shape and type, everything else as it is."""
    if isinstance(value, torch.Tensor):
        found = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if not value.is_floating_point():
            found["digest"] = hashlib.sha256(value.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
        return found
    if hasattr(value, "tensors"):  # a nested latent
        return [describe(each) for each in value.tensors]
    if isinstance(value, dict):
        return {name: describe(each) for name, each in sorted(value.items())}
    return [describe(each) for each in value] if isinstance(value, (list, tuple)) else value


NODE_CLASS_MAPPINGS = {"H3TEStandInVAE": StandInVAE, "H3TEConditioningShapes": ConditioningShapes}
