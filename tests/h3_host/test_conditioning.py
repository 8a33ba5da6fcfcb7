"""CONDITIONING and LATENT of our nodes beside the host's own, with our CLIP: keys, shapes, dtypes, and values.

Two keys may be on top: `picture_index`, which newer hosts have, and `h3te`, what ours came from. Values are bit-equal,
as every case's geometry agrees.
"""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import picture
from h3te_tests.h3_host.requests import CASES, SIZE, ours, theirs

ON_TOP = {"picture_index", "h3te"}


def same(ours, theirs, path="") -> None:
    if isinstance(theirs, torch.Tensor):
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device), path
        assert torch.equal(ours, theirs), path
    elif isinstance(theirs, dict):
        assert set(ours) - ON_TOP == set(theirs) - ON_TOP, path
        for key in theirs:
            same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), path
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            same(a, b, f"{path}[{i}]")
    else:
        assert ours == theirs, path


@pytest.mark.parametrize("name", CASES)
def test_conditioning_is_that_of_the_hosts_node(h3, tiny_clip, name):
    (positive, latent), (their_positive, their_latent) = ours(name, tiny_clip), theirs(h3, name, tiny_clip)
    same(positive, their_positive)
    assert latent["samples"].is_nested
    same(latent["samples"].tensors, their_latent["samples"].tensors)


def test_cover_crop_of_a_follower_keeps_the_hosts_shapes_and_stays_close(h3, tiny_clip):
    """Released: scale, then crop. The host: crop, then scale. Edges of the picture move by less than a pixel."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    from .located_vaes import LocatedVAE

    given = {"clip": tiny_clip, "prompt": "", "vae": LocatedVAE(), **SIZE, "last_frame": picture(2, 160, 160)}
    ((_, extras),) = EncodeKeyframes.execute(**given).args[0][0]
    ((_, their_extras),) = h3.MiniMaxH3ImageToVideo.execute(**given).args[0]
    (block,), (their_block,) = extras["minimax_keyframes"], their_extras["minimax_keyframes"]
    assert block["resolved_frame_index"] == their_block["resolved_frame_index"]
    assert block["latent"].shape == their_block["latent"].shape
    assert not torch.equal(block["latent"], their_block["latent"])
