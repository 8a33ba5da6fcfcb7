"""Add Guide for MiniMax H3 chained after our keyframe node: it reads our CONDITIONING and LATENT as the host's own."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import picture, sound

from .located_vaes import LocatedAudioVAE, LocatedVAE

SIZE = {"width": 256, "height": 192, "length": 39}
FIRST, GUIDE = picture(1, 192, 256), picture(2, 192, 256)  # of the canvas' size: the same bytes by both nodes' rules


@pytest.fixture
def encoded(h3, tiny_clip):
    """Our node with a first frame and a chain: (CONDITIONING, LATENT) for each prompt."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    def run(prompt="a fox", **inputs):
        output = EncodeKeyframes.execute(
            clip=tiny_clip, prompt=prompt, vae=LocatedVAE(), **SIZE, **{"first_frame": FIRST, **inputs}
        )
        return list(zip(output.args[0], output.args[1], strict=True))

    return run


@pytest.fixture
def guide(h3):
    def run(positive, latent, frame, **inputs):
        vaes = {"vae": LocatedVAE(), "audio_vae": LocatedAudioVAE()}
        return h3.MiniMaxH3AddGuide.execute(positive=positive, latent=latent, frame_idx=frame, **vaes, **inputs).args[0]

    return run


def blocks(conditioning) -> list[dict]:
    return conditioning[0][1]["minimax_keyframes"]


def equal(ours: list[dict], theirs: list[dict]) -> bool:
    return len(ours) == len(theirs) and all(
        set(a) == set(b)
        and a["resolved_frame_index"] == b["resolved_frame_index"]
        and all(torch.equal(a[key], b[key]) for key in set(a) - {"resolved_frame_index"})
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("frame", "resolved"), [(17, 17), (-1, 38), (-39, 0), (38, 38)])
@pytest.mark.parametrize("kind", ["image", "audio", "both"])
def test_guide_is_added_at_its_frame_after_ours(encoded, guide, frame, resolved, kind):
    ((positive, latent),) = encoded()
    given = {"image": GUIDE, "audio": sound(0.5)}
    guided = guide(positive, latent, frame, **{k: v for k, v in given.items() if kind in (k, "both")})
    assert torch.equal(guided[0][0], positive[0][0])
    assert [block["resolved_frame_index"] for block in blocks(guided)] == [0, resolved]
    assert equal(blocks(guided)[:1], blocks(positive))
    keys = {"image": {"latent"}, "audio": {"audio_latent"}, "both": {"latent", "audio_latent"}}[kind]
    assert set(blocks(guided)[1]) == {"resolved_frame_index", *keys}


@pytest.mark.parametrize("given", [{"image": GUIDE}, {"audio": sound(0.5)}, {"image": picture(4, 192, 256, batch=22)}])
def test_guided_conditioning_is_that_after_the_hosts_own_node(h3, tiny_clip, encoded, guide, given):
    theirs = h3.MiniMaxH3ImageToVideo.execute(tiny_clip, LocatedVAE(), "a fox", **SIZE, first_frame=FIRST).args
    ((positive, latent),) = encoded()
    ours, expected = guide(positive, latent, 10, **given), guide(theirs[0], theirs[1], 10, **given)
    assert torch.equal(ours[0][0], expected[0][0])
    assert equal(blocks(ours), blocks(expected))


def test_keyframe_of_ours_that_is_not_shown_is_a_guide(encoded, guide):
    """The same block, and the same hidden states, whichever node pins the frame."""
    from h3te.nodes.keyframe import KeyframeNode

    ((positive, latent),) = encoded()
    for frame in (17, -3):
        (chain,) = KeyframeNode.execute(GUIDE, "frame", frame, 0.0, "released", "black", show_to_encoder=False).args
        ((ours, _),) = encoded(keyframes=chain)
        guided = guide(positive, latent, frame, image=GUIDE)
        assert torch.equal(ours[0][0], guided[0][0])
        assert equal(blocks(ours), blocks(guided))


def test_several_guides_follow_a_chain_of_ours(encoded, guide):
    from h3te.nodes.chains import KeyframeItem

    ((positive, latent),) = encoded(keyframes=(KeyframeItem(GUIDE, 8), KeyframeItem(GUIDE, 12, show=False)))
    guided = guide(guide(positive, latent, 20, image=FIRST), latent, -1, audio=sound(0.1))
    assert [block["resolved_frame_index"] for block in blocks(guided)] == [0, 8, 12, 20, 38]
    assert [block["resolved_frame_index"] for block in blocks(positive)] == [0, 8, 12]


def test_guide_follows_text_alone(encoded, guide):
    ((positive, latent),) = encoded(first_frame=None)
    assert "minimax_keyframes" not in positive[0][1]
    assert [block["resolved_frame_index"] for block in blocks(guide(positive, latent, 5, image=GUIDE))] == [5]


def test_guide_of_one_prompt_leaves_the_others_of_its_list(encoded, guide):
    """They share the blocks of our node."""
    (first, latent), (second, _) = encoded(prompt=["a fox", "a hen"])
    guided = guide(first, latent, 17, image=GUIDE)
    assert [len(blocks(each)) for each in (guided, first, second)] == [2, 1, 1]


@pytest.mark.parametrize("frame", [39, -40])
def test_frame_outside_the_video_of_our_latent_is_refused_by_the_host(encoded, guide, frame):
    ((positive, latent),) = encoded()
    with pytest.raises(ValueError, match=f"frame_idx {frame} is outside the video's 39 frames"):
        guide(positive, latent, frame, image=GUIDE)
