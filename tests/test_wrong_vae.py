"""A VAE of another model is refused when its latent arrives, before anything is sampled with it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import StandInAudioVAE, StandInVAE, comfy, picture, sound, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_encode_keyframes import encode as encode_keyframes  # noqa: F401 (fixture)
from h3te_tests.test_encode_references import encode as encode_references  # noqa: F401 (fixture)

VIDEO = r"^vae: expected the video VAE of MiniMax H3, whose latent is \[{}\] here, got a latent of {}\. Connect"
AUDIO = r"^audio_vae: expected the audio VAE of MiniMax H3, whose latent is \[1, 32, 2, T\] here, got a latent of {}\."


def giving(latent):
    return SimpleNamespace(encode=lambda given: latent)


@pytest.mark.parametrize(
    ("latent", "got"),
    [
        (torch.zeros(1, 4, 12, 16), "shape [1, 4, 12, 16]"),
        (torch.zeros(1, 16, 1, 12, 16), "shape [1, 16, 1, 12, 16]"),
        (torch.zeros(1, 24, 1, 24, 32), "shape [1, 24, 1, 24, 32]"),
        ({"samples": torch.zeros(1, 24, 1, 12, 16)}, "type dict"),
        (None, "type NoneType"),
    ],
    ids=["sd", "channels", "scale", "dict", "none"],
)
def test_latent_of_a_picture_by_another_vae_is_refused(encode_references, encode_keyframes, latent, got):  # noqa: F811
    said = VIDEO.format("1, 24, 1, 12, 16", re.escape(got))
    with pytest.raises(ValueError, match=said) as raised:
        encode_references(ref_images={"ref_image_0": picture(1, 192, 256)}, vae=giving(latent))
    assert str(raised.value).endswith("Connect minimax_h3_video_vae.")
    with pytest.raises(ValueError, match=said):
        encode_keyframes(last_frame=picture(1), vae=giving(latent))


def test_latent_of_a_video_by_another_vae_is_refused(encode_references):  # noqa: F811
    frames = picture(1, 64, 96, batch=48)
    for wrong in (torch.zeros(22, 4, 8, 12), torch.zeros(1, 24, 6, 4, 6), torch.zeros(1, 16, 7, 4, 6)):
        said = VIDEO.format("1, 24, 7, 4, 6", re.escape(f"shape {list(wrong.shape)}"))
        with pytest.raises(ValueError, match=said):
            encode_references(ref_videos={"ref_video_0": frames}, vae=giving(wrong))


@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 64, 40), torch.zeros(1, 8, 2, 40), torch.zeros(1, 32, 2, 0), {}, None]
)
def test_latent_of_a_sound_by_another_vae_is_refused(encode_references, wrong):  # noqa: F811
    got = f"shape {list(wrong.shape)}" if isinstance(wrong, torch.Tensor) else f"type {type(wrong).__name__}"
    seen = {"ref_videos": {"ref_video_0": picture(1, batch=48)}}
    for heard in ({"ref_audios": {"ref_audio_0": sound()}}, {"ref_video_audios": {"ref_video_audio_0": sound()}}):
        with pytest.raises(ValueError, match=AUDIO.format(re.escape(got))) as raised:
            encode_references(vae=StandInVAE(), audio_vae=giving(wrong), **seen, **heard)
        assert str(raised.value).endswith("Connect minimax_h3_audio_vae.")


def test_vaes_of_the_model_are_taken(encode_references):  # noqa: F811
    given = {
        "ref_images": {"ref_image_0": picture(1)},
        "ref_videos": {"ref_video_0": picture(2, batch=48)},
        "ref_audios": {"ref_audio_0": sound()},
    }
    conditioning, *_ = encode_references(vae=StandInVAE(), audio_vae=StandInAudioVAE(), **given)
    assert len(conditioning[0][1]["minimax_refs"]) == 3
