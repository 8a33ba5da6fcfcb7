"""The pixels that the VAE is given for keyframes: where the host's Image to Video and ours agree, and where not.

Ours are the released rules. The host differs in three ways: floats between two bytes are cut, not rounded; a follower
is cropped and then scaled; last_frame alone is treated as a follower, not as the anchor.
"""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, picture

SIZE = {"width": 256, "height": 192, "length": 39}


class SeeingVAE(StandInVAE):
    def __init__(self):
        self.seen = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append((pixels[0] * 255).round().int())
        return super().encode(pixels)


@pytest.fixture
def seen(h3, tiny_clip):
    """Bytes [H, W, 3] that the VAE is given by our node and by the host's, for the same pictures."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    def run(**frames):
        ours, theirs = SeeingVAE(), SeeingVAE()
        EncodeKeyframes.execute(clip=tiny_clip, prompt="", vae=ours, **SIZE, **frames)
        h3.MiniMaxH3ImageToVideo.execute(tiny_clip, theirs, "", **SIZE, **frames)
        return list(zip(ours.seen, theirs.seen, strict=True))

    return run


def smooth(height: int, width: int) -> torch.Tensor:
    """A picture as a resizing or decoding node makes it: floats between bytes."""
    coarse = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear").movedim(1, -1)


@pytest.mark.parametrize("size", [(192, 256), (480, 640), (300, 100), (100, 100), (1080, 1920)])
def test_stretched_bytes_are_equal(seen, size):
    ((ours, theirs),) = seen(first_frame=picture(1, *size))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [(192, 256), (480, 640), (48, 64)])
def test_follower_of_the_canvas_aspect_is_equal(seen, size):
    _, (ours, theirs) = seen(first_frame=picture(1), last_frame=picture(2, *size))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [(192, 256), (480, 640), (300, 100)])
def test_floats_between_bytes_are_rounded_here_and_cut_there(seen, size):
    ((ours, theirs),) = seen(first_frame=smooth(*size))
    difference = ours - theirs
    assert difference.float().mean() == pytest.approx(0.5, abs=0.1)
    assert difference.abs().max() <= 3  # 1 before scaling


@pytest.mark.parametrize("size", [(1080, 1920), (300, 100), (100, 100)])
def test_follower_of_another_aspect_is_scaled_then_cropped_here_and_cropped_then_scaled_there(seen, size):
    whole = (smooth(*size) * 255).round() / 255  # bytes, so that nothing is cut
    _, (ours, theirs) = seen(first_frame=picture(1), last_frame=whole)
    difference = (ours - theirs).abs()
    assert 0 < difference.float().mean() < 3
    assert difference.max() <= 24


def test_last_frame_alone_is_the_anchor_here_and_a_follower_there(seen):
    from h3te.encoder import geometry

    last = picture(2, 300, 100)
    ((ours, theirs),) = seen(last_frame=last)
    assert torch.equal(ours, geometry.resize(last[0], 256, 192).int())
    _, (_, following) = seen(first_frame=picture(1), last_frame=last)
    assert torch.equal(theirs, following)
    assert not torch.equal(ours, theirs)
