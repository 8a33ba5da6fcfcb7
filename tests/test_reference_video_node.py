"""Reference Video: VIDEO files and frames, their rate, sound and length; what is refused at the node itself."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, sound, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_reference_nodes import encode, nodes  # noqa: F401 (fixtures)
from h3te_tests.video_files import level_of, write_tone, write_video


@pytest.fixture
def from_file(comfy):  # noqa: F811
    from comfy_api.input_impl import VideoFromFile

    return lambda file: VideoFromFile(str(file))


def components(frames, fps=Fraction(24), audio=None, **more):
    """What answers as a VIDEO does."""
    parts = SimpleNamespace(images=frames, frame_rate=fps, audio=audio, **more)
    return SimpleNamespace(get_components=lambda: parts)


def test_video_file_brings_rate_frames_and_sound(nodes, from_file, tmp_path):  # noqa: F811
    file = write_video(tmp_path / "clip.mp4", frames=90, fps=30, tone=2.5)
    (item,) = nodes.video(video=from_file(file), fps=7.0)
    assert (item.fps, item.total, tuple(item.frames.shape)) == (30.0, 90, (90, 64, 96, 3))
    assert item.frames.dtype == torch.uint8
    assert [round(float(frame.float().mean())) for frame in item.frames[:20]] == pytest.approx(
        [level_of(k) for k in range(20)], abs=4
    )
    assert item.soundtrack["sample_rate"] == 32000
    assert item.soundtrack["waveform"].shape[-1] / 32000 == pytest.approx(2.5, abs=0.1)


def test_video_file_without_sound_is_silent(nodes, from_file, tmp_path):  # noqa: F811
    (item,) = nodes.video(video=from_file(write_video(tmp_path / "mute.mp4", frames=48, fps=24)))
    assert item.soundtrack is None


def test_film_rate_stays_a_fraction_of_its_own(nodes, from_file, tmp_path):  # noqa: F811
    file = write_video(tmp_path / "film.mp4", frames=48, fps=Fraction(24000, 1001))
    (item,) = nodes.video(video=from_file(file))
    assert item.fps == pytest.approx(23.976, abs=1e-3)


def test_no_more_of_a_long_video_is_kept_than_can_be_used(nodes, encode):  # noqa: F811
    (item,) = nodes.video(video=components(picture(1, 4, 4, batch=2000), fps=Fraction(60)))
    assert (len(item.frames), item.total, item.frames.dtype) == (909, 2000, torch.uint8)
    said = encode(references=(item,), length=362)[1]
    assert "362 frames (15.1 s) used of 2000 at 60 fps (33.3 s)" in said


def test_alpha_beside_the_frames_of_newer_hosts_is_composited(nodes, encode):  # noqa: F811
    frames = torch.zeros(48, 64, 64, 3)
    chain = nodes.video(video=components(frames, alpha=torch.zeros(48, 64, 64, 1)))
    conditioning, said = encode(references=chain, vae=StandInVAE(), alpha_colour="red")
    assert float(conditioning[0][1]["minimax_refs"][0]["latent"].mean()) == pytest.approx(1 / 3)
    assert "alpha of Reference Video (H3TE) 1 of the chain" in said
    opaque = nodes.video(video=components(frames, alpha=None))
    assert opaque[0].frames.shape[-1] == 3


def test_soundtrack_replaces_the_sound_of_the_video_and_silence_drops_both(nodes):  # noqa: F811
    own, other = sound(1.0), sound(2.0)
    video = components(picture(1, batch=48), audio=own)
    assert nodes.video(video=video)[0].soundtrack is own
    assert nodes.video(video=video, soundtrack=other)[0].soundtrack is other
    assert nodes.video(video=video, soundtrack=other, with_sound=False)[0].soundtrack is None
    assert nodes.video(frames=picture(1, batch=48), soundtrack=other)[0].soundtrack is other


def test_rate_of_the_widget_is_of_frames_alone(nodes):  # noqa: F811
    assert nodes.video(frames=picture(1, batch=48), fps=12)[0].fps == 12.0
    assert nodes.video(video=components(picture(1, batch=48), fps=Fraction(24)), fps=0.0)[0].fps == 24.0


@pytest.mark.parametrize("given", [{}, {"video": 1, "frames": 1}])
def test_video_and_frames_exclude_each_other(nodes, given):  # noqa: F811
    got = "both" if given else "none"
    with pytest.raises(ValueError, match=rf"1 of the chain: expected either video or frames, got {got}\. Connect one"):
        nodes.video(**given)


@pytest.mark.parametrize("fps", [0, -24, math.nan, math.inf, 0.001, 5000, "24", None])
def test_rate_that_is_none_is_refused(nodes, fps):  # noqa: F811
    with pytest.raises(ValueError, match=r"expected a frame rate from 0\.01 to 1000, got .*\. Set it to the rate"):
        nodes.video(frames=picture(1, batch=48), fps=fps)
    with pytest.raises(ValueError, match=r"1 of the chain, video: expected a frame rate from 0\.01 to 1000"):
        nodes.video(video=components(picture(1, batch=48), fps=fps))


@pytest.mark.parametrize(
    ("frames", "fps", "seconds"), [(47, 24, "1.96"), (118, 60, "1.97"), (1, 24, "0.04"), (23, 12, "1.92")]
)
def test_video_of_less_than_two_seconds_is_refused_at_its_own_node(nodes, frames, fps, seconds):  # noqa: F811
    said = rf"at least 2 s \(48 frames at 24 fps\), got {frames} at {fps} fps \({seconds} s\)\. Use a longer clip"
    with pytest.raises(ValueError, match=said):
        nodes.video(frames=picture(1, 4, 4, batch=frames), fps=fps)


@pytest.mark.parametrize(("frames", "fps"), [(48, 24), (119, 60), (24, 12), (48, 23.976), (4, 2)])
def test_video_of_two_seconds_is_taken(nodes, frames, fps):  # noqa: F811
    assert len(nodes.video(frames=picture(1, 4, 4, batch=frames), fps=fps)) == 1


def test_text_on_the_video_socket_is_refused(nodes):  # noqa: F811
    with pytest.raises(ValueError, match=r"1 of the chain: expected a VIDEO, got str\. Connect Load Video"):
        nodes.video(video="clip.mp4")


def test_file_that_is_no_video_is_refused_with_the_reason(nodes, from_file, tmp_path):  # noqa: F811
    file = tmp_path / "broken.mp4"
    file.write_bytes(b"no video at all" * 100)
    with pytest.raises(ValueError, match=r"1 of the chain: expected a video that can be decoded, got InvalidDataError"):
        nodes.video(video=from_file(file))
    with pytest.raises(ValueError, match="expected a video that can be decoded, got FileNotFoundError"):
        nodes.video(video=from_file(tmp_path / "missing.mp4"))


def test_video_without_pictures_is_refused(nodes, from_file, tmp_path):  # noqa: F811
    with pytest.raises(ValueError, match="1 of the chain: expected a video with pictures, got none"):
        nodes.video(video=components(torch.zeros(0, 3, 0, 0)))
    with pytest.raises(ValueError, match=r"1 of the chain: expected a video that can be decoded, got \w+Error"):
        nodes.video(video=from_file(write_tone(tmp_path / "sound.mp4", 1.0)))


def test_stop_while_decoding_is_not_taken_for_a_broken_file(nodes, comfy):  # noqa: F811
    def stop():
        raise comfy.model_management.InterruptProcessingException()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        nodes.video(video=SimpleNamespace(get_components=stop))
