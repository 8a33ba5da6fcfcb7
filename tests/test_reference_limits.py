"""Limits of the released model and odd pictures: refused by the socket, or defined; before anything is converted."""

from __future__ import annotations

import math

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, sound, tiny_clip  # noqa: F401 (fixtures)

TARGET = {"width": 256, "height": 192, "length": 22}


@pytest.fixture
def encode(comfy, tiny_clip):  # noqa: F811
    """(CONDITIONING, node text) of the encode node."""
    from h3te.nodes.encode_references import EncodeReferences

    def run(**inputs):
        output = EncodeReferences.execute(**{"clip": tiny_clip, "prompt": "", **TARGET, **inputs})
        return output.args[0][0], output.ui["text"][0]

    return run


@pytest.fixture
def prepared(comfy):  # noqa: F811
    """The references of a chain, prepared for a target of `length`, without an encoder."""
    from h3te.nodes.host.references import prepare, resolve_target

    return lambda *items, length=22: prepare(items, resolve_target(256, 192, length), "match")


@pytest.fixture
def items(comfy):  # noqa: F811
    from h3te.nodes import chains

    return chains


def tiny(seed: int = 1, batch: int = 1) -> torch.Tensor:
    return picture(seed, 32, 32, batch=batch)


def clip_of(frames: int = 48) -> torch.Tensor:
    return picture(2, 32, 32, batch=frames)


def images(count: int) -> dict:
    return {f"ref_image_{i}": tiny(i) for i in range(count)}


# numbers


def test_nine_pictures_are_taken_and_ten_are_refused_by_their_sockets(encode):
    assert encode(ref_images=images(9))[0][0][0].isfinite().all()
    with pytest.raises(
        ValueError, match=r"ref_image_0, .*ref_image_9: expected at most 9 pictures, got 10\. Use fewer"
    ):
        encode(ref_images=images(10))


def test_pictures_of_batches_are_counted_each(encode):
    with pytest.raises(
        ValueError, match=r"ref_image_0 \(6\), ref_image_1 \(4\): expected at most 9 pictures, got 10\."
    ):
        encode(ref_images={"ref_image_0": tiny(batch=6), "ref_image_1": tiny(batch=4)})


def test_three_videos_are_taken_and_four_are_refused(prepared, items):
    videos = [items.VideoItem(clip_of(), where=f"video {i}") for i in range(4)]
    assert len(prepared(*videos[:3])) == 3
    with pytest.raises(ValueError, match="video 0, video 1, video 2, video 3: expected at most 3 videos, got 4"):
        prepared(*videos)


def test_soundtracks_are_not_counted_as_sounds(prepared, items):
    videos = [items.VideoItem(clip_of(), soundtrack=sound(0.1)) for _ in range(3)]
    sounds = [items.AudioItem(sound(0.1), where=f"sound {i}") for i in range(4)]
    assert len(prepared(*videos, *sounds[:3])) == 6
    with pytest.raises(ValueError, match=r"sound 0, .*sound 3: expected at most 3 sounds, got 4"):
        prepared(*videos, *sounds)


def test_twelve_references_are_taken_and_thirteen_are_refused(prepared, items):
    pictures = [items.ImageItem(tiny(), where=f"picture {i}") for i in range(9)]
    sounds = [items.AudioItem(sound(0.1), where=f"sound {i}") for i in range(3)]
    assert len(prepared(*pictures, *sounds)) == 12
    with pytest.raises(
        ValueError, match=r"picture 0, .*sound 2, a video: expected at most 12 references in all, got 13"
    ):
        prepared(*pictures, *sounds, items.VideoItem(clip_of(), where="a video"))


@pytest.mark.parametrize("vision_only", [False, True])
def test_sound_alone_is_refused_by_its_socket(prepared, items, vision_only):
    alone = items.AudioItem(sound(), vision_only, where="ref_audio_0")
    with pytest.raises(
        ValueError, match="ref_audio_0: expected a picture or a video beside the sound, got sound alone"
    ):
        prepared(alone)
    assert len(prepared(alone, items.ImageItem(tiny(), vision_only=True))) == 2


def test_vision_only_pictures_may_exceed_every_number_and_the_node_says_the_cost(encode, items):
    more = (items.ImageItem(tiny(batch=6), vision_only=True),)
    conditioning, said = encode(references=more, ref_images=images(9), vae=StandInVAE())
    blocks = conditioning[0][1]["minimax_refs"]
    assert [block["picture_index"] for block in blocks] == list(range(9))
    assert said.splitlines()[0] == (
        "15 pictures, 6 of them vision only: the released model was given 9 pictures and 12 references at most; "
        f"the text encoder reads {15 * 66} tokens of them"
    )
    assert conditioning[0][0].shape[1] == 15 * 66 + labels(15)
    assert "released model was given" not in encode(ref_images=images(9))[1]


def labels(pictures: int) -> int:
    """Tokens of "<Picture i>: ": 6, and one more for the second digit."""
    return sum(6 + (i > 9) for i in range(1, pictures + 1))


def test_vision_only_pictures_may_exceed_twelve_in_all(prepared, items):
    pictures = [items.ImageItem(tiny(), vision_only=True) for _ in range(13)]
    assert len(prepared(*pictures)) == 13


# lengths


@pytest.mark.parametrize("frames", [1, 5, 47])
def test_short_video_on_a_socket_is_refused(encode, frames):
    with pytest.raises(
        ValueError, match=rf"ref_video_0: expected a reference video of at least 2 s .* got {frames} at"
    ):
        encode(ref_videos={"ref_video_0": clip_of(frames)})


def test_videos_are_fifteen_seconds_together(prepared, items):
    def video(frames):
        return items.VideoItem(clip_of(frames), where=f"of {frames}")

    assert [len(p.pixels) for p in prepared(video(362), length=362)] == [362]
    assert [len(p.pixels) for p in prepared(video(175), video(190), length=362)] == [175, 175]
    with pytest.raises(ValueError, match=r"of 192 \(192\), of 175 \(175\): expected at most 362 frames .* got 367\."):
        prepared(video(192), video(175), length=362)
    with pytest.raises(
        ValueError, match=r"of 400 \(396\): expected at most 362 .* \(15 s\), got 396\. Use shorter clips"
    ):
        prepared(video(400), length=500)


def test_long_video_is_cut_to_the_target_and_no_error(prepared, items):
    assert [len(p.pixels) for p in prepared(items.VideoItem(clip_of(800)), length=39)] == [39]


def test_videos_of_different_sizes_keep_their_own(encode):
    wide, tall = picture(1, 64, 160, batch=48), picture(2, 96, 64, batch=60)
    conditioning, said = encode(ref_videos={"ref_video_0": wide, "ref_video_1": tall}, vae=StandInVAE())
    blocks = conditioning[0][1]["minimax_refs"]
    assert [(block["latent_w"], block["latent_h"]) for block in blocks] == [(10, 4), (4, 6)]
    assert "Video 2 = ref_video_1: 22 frames (0.9 s) used of 60 at 24 fps (2.5 s); 64x96 as it is" in said


@pytest.mark.parametrize(
    ("frames", "fps", "used"),
    [
        (150, 60, [1, 3, 6, 8, 11]),
        (60, 30, [0, 1, 3, 4, 5]),
        (30, 12, [0, 0, 1, 1, 2]),
        (100, 23.976, [0, 1, 2, 3, 4]),
        (200, 50, [1, 3, 5, 7, 9]),
    ],
)
def test_other_rates_are_dropped_or_repeated_whole_to_24(prepared, items, frames, fps, used):
    levels = torch.arange(frames, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 32, 32, 3)
    (reference,) = prepared(items.VideoItem(levels, fps), length=22)
    assert reference.pixels[:5, 0, 0, 0].tolist() == used
    assert len(reference.pixels) == 22


@pytest.mark.parametrize("fps", [23.976, 25, 29.97, 30, 50, 59.94, 60, 12, 12.5, 10, 240])
@pytest.mark.parametrize("length", [22, 39, 362])
def test_frames_used_are_the_first_of_the_whole_video_at_24(prepared, items, fps, length):
    from h3te.encoder.pixels import resample_indices

    frames = math.ceil(2.3 * fps)
    levels = torch.arange(frames).view(-1, 1, 1, 1).expand(-1, 32, 32, 3)
    pixels = torch.cat([levels[..., :1] % 256, levels[..., 1:2] // 256, levels[..., 2:]], dim=-1).to(torch.uint8)
    (reference,) = prepared(items.VideoItem(pixels, fps), length=length)
    whole = resample_indices(frames, fps)
    kept = max(n for n in range(5, len(whole) + 1, 17) if n <= length)
    found = reference.pixels[:, 0, 0].to(torch.int64)
    assert (found[:, 0] + 256 * found[:, 1]).tolist() == whole[:kept]
