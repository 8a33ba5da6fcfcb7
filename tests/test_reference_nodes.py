"""The nodes that build a chain of references: what they put on it, and what they refuse at their own door."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import (  # noqa: F401 (fixtures)
    StandInAudioVAE,
    StandInVAE,
    comfy,
    picture,
    sound,
    tiny_clip,
)
from h3te_tests.video_files import level_of, write_video

VIDEO_DEFAULTS = {"fps": 24.0, "with_sound": True, "vision_only": False}


@pytest.fixture
def nodes(comfy):  # noqa: F811
    """image(...), video(...), audio(...): a chain, with the defaults of the widgets."""
    from h3te.nodes.reference_audio import ReferenceAudio
    from h3te.nodes.reference_image import ReferenceImage
    from h3te.nodes.reference_video import ReferenceVideo

    def image(pixels, **inputs):
        widgets = {"vision_only": False, "timed": False, "second": 0.0}
        return ReferenceImage.execute(image=pixels, **{**widgets, **inputs}).args[0]

    def video(**inputs):
        return ReferenceVideo.execute(**{**VIDEO_DEFAULTS, **inputs}).args[0]

    def audio(heard, **inputs):
        return ReferenceAudio.execute(audio=heard, **{"vision_only": False, **inputs}).args[0]

    return SimpleNamespace(image=image, video=video, audio=audio)


@pytest.fixture
def from_file(comfy):  # noqa: F811
    from comfy_api.input_impl import VideoFromFile

    return lambda file: VideoFromFile(str(file))


def components(frames, fps=Fraction(24), audio=None, **more):
    """What answers as a VIDEO does."""
    parts = SimpleNamespace(images=frames, frame_rate=fps, audio=audio, **more)
    return SimpleNamespace(get_components=lambda: parts)


# chains


def test_each_node_adds_to_the_end_and_leaves_what_came_before(nodes):
    first = nodes.image(picture(1))
    second = nodes.audio(sound(), references=first)
    third = nodes.video(frames=picture(2, batch=48), references=second)
    assert [type(item).__name__ for item in third] == ["ImageItem", "AudioItem", "VideoItem"]
    assert [item.where for item in third] == [
        "Reference Image (H3TE) 1 of the chain",
        "Reference Audio (H3TE) 2 of the chain",
        "Reference Video (H3TE) 3 of the chain",
    ]
    assert third[:2] == second
    assert second[:1] == first
    assert len(first) == 1


def test_chain_that_feeds_two_branches_is_the_same_in_both(nodes):
    shared = nodes.image(picture(1))
    left, right = nodes.image(picture(2), references=shared), nodes.audio(sound(), references=shared)
    assert len(shared) == 1
    assert left[0] is right[0] is shared[0]
    assert len(left) == len(right) == 2


@pytest.mark.parametrize("wrong", [[1], "text", (1,), {"image": None}])
def test_something_else_on_the_chain_socket_is_refused_by_the_node(nodes, wrong):
    for title, add in (
        ("Reference Image", lambda: nodes.image(picture(1), references=wrong)),
        ("Reference Video", lambda: nodes.video(frames=picture(1, batch=48), references=wrong)),
        ("Reference Audio", lambda: nodes.audio(sound(), references=wrong)),
    ):
        with pytest.raises(ValueError, match=rf"{title} \(H3TE\): expected references to be a chain of ImageItem"):
            add()


def test_keyframes_are_no_references(nodes):
    from h3te.nodes.chains import KeyframeItem

    with pytest.raises(ValueError, match="expected references to be a chain"):
        nodes.image(picture(1), references=(KeyframeItem(picture(1)),))


# pictures


def test_second_counts_only_when_timed(nodes):
    assert nodes.image(picture(1), second=3.5)[0].timestamp is None
    assert nodes.image(picture(1), timed=True, second=3.5)[0].timestamp == 3.5
    assert nodes.image(picture(1), timed=True, second=2)[0].timestamp == 2.0  # an INT over a link


@pytest.mark.parametrize("second", [-0.1, math.nan, math.inf, "2", None])
def test_second_that_is_none_is_refused_when_timed_and_not_read_otherwise(nodes, second):
    with pytest.raises(ValueError, match=r"Reference Image .* 1 of the chain: expected a second from 0 on, got"):
        nodes.image(picture(1), timed=True, second=second)
    assert nodes.image(picture(1), second=second)[0].timestamp is None


def test_flat_picture_is_refused_at_its_own_node(nodes):
    with pytest.raises(ValueError, match=r"Reference Image .*: expected sides within 1:4 and 4:1, got 8000x100\. Crop"):
        nodes.image(torch.zeros(1, 100, 8000, 3))
    nodes.image(torch.zeros(1, 100, 400, 3))


# videos


def test_video_file_brings_rate_frames_and_sound(nodes, from_file, tmp_path):
    file = write_video(tmp_path / "clip.mp4", frames=90, fps=30, tone=2.5)
    (item,) = nodes.video(video=from_file(file), fps=7.0)
    assert (item.fps, item.total, tuple(item.frames.shape)) == (30.0, 90, (90, 64, 96, 3))
    assert item.frames.dtype == torch.uint8
    assert [round(float(frame.float().mean())) for frame in item.frames[:20]] == pytest.approx(
        [level_of(k) for k in range(20)], abs=4
    )
    assert item.soundtrack["sample_rate"] == 32000
    assert item.soundtrack["waveform"].shape[-1] / 32000 == pytest.approx(2.5, abs=0.1)


def test_video_file_without_sound_is_silent(nodes, from_file, tmp_path):
    (item,) = nodes.video(video=from_file(write_video(tmp_path / "mute.mp4", frames=48, fps=24)))
    assert item.soundtrack is None


def test_film_rate_stays_a_fraction_of_its_own(nodes, from_file, tmp_path):
    file = write_video(tmp_path / "film.mp4", frames=48, fps=Fraction(24000, 1001))
    (item,) = nodes.video(video=from_file(file))
    assert item.fps == pytest.approx(23.976, abs=1e-3)


def test_no_more_of_a_long_video_is_kept_than_can_be_used(nodes, encode):
    (item,) = nodes.video(video=components(picture(1, 4, 4, batch=2000), fps=Fraction(60)))
    assert (len(item.frames), item.total, item.frames.dtype) == (909, 2000, torch.uint8)
    said = encode(references=(item,), length=362)[1]
    assert "362 frames (15.1 s) used of 2000 at 60 fps (33.3 s)" in said


def test_alpha_beside_the_frames_of_newer_hosts_is_composited(nodes, encode):
    frames = torch.zeros(48, 64, 64, 3)
    chain = nodes.video(video=components(frames, alpha=torch.zeros(48, 64, 64, 1)))
    conditioning, said = encode(references=chain, vae=StandInVAE(), alpha_colour="red")
    assert float(conditioning[0][1]["minimax_refs"][0]["latent"].mean()) == pytest.approx(1 / 3)
    assert "alpha of Reference Video (H3TE) 1 of the chain" in said
    opaque = nodes.video(video=components(frames, alpha=None))
    assert opaque[0].frames.shape[-1] == 3


def test_soundtrack_replaces_the_sound_of_the_video_and_silence_drops_both(nodes):
    own, other = sound(1.0), sound(2.0)
    video = components(picture(1, batch=48), audio=own)
    assert nodes.video(video=video)[0].soundtrack is own
    assert nodes.video(video=video, soundtrack=other)[0].soundtrack is other
    assert nodes.video(video=video, soundtrack=other, with_sound=False)[0].soundtrack is None
    assert nodes.video(frames=picture(1, batch=48), soundtrack=other)[0].soundtrack is other


def test_rate_of_the_widget_is_of_frames_alone(nodes):
    assert nodes.video(frames=picture(1, batch=48), fps=12)[0].fps == 12.0
    assert nodes.video(video=components(picture(1, batch=48), fps=Fraction(24)), fps=0.0)[0].fps == 24.0


@pytest.mark.parametrize("given", [{}, {"video": 1, "frames": 1}])
def test_video_and_frames_exclude_each_other(nodes, given):
    got = "both" if given else "none"
    with pytest.raises(ValueError, match=rf"1 of the chain: expected either video or frames, got {got}\. Connect one"):
        nodes.video(**given)


@pytest.mark.parametrize("fps", [0, -24, math.nan, math.inf, 0.001, 5000, "24", None])
def test_rate_that_is_none_is_refused(nodes, fps):
    with pytest.raises(ValueError, match=r"expected a frame rate from 0\.01 to 1000, got .*\. Set it to the rate"):
        nodes.video(frames=picture(1, batch=48), fps=fps)
    with pytest.raises(ValueError, match=r"1 of the chain, video: expected a frame rate from 0\.01 to 1000"):
        nodes.video(video=components(picture(1, batch=48), fps=fps))


@pytest.mark.parametrize(
    ("frames", "fps", "seconds"), [(47, 24, "1.96"), (118, 60, "1.97"), (1, 24, "0.04"), (23, 12, "1.92")]
)
def test_video_of_less_than_two_seconds_is_refused_at_its_own_node(nodes, frames, fps, seconds):
    said = rf"at least 2 s \(48 frames at 24 fps\), got {frames} at {fps} fps \({seconds} s\)\. Use a longer clip"
    with pytest.raises(ValueError, match=said):
        nodes.video(frames=picture(1, 4, 4, batch=frames), fps=fps)


@pytest.mark.parametrize(("frames", "fps"), [(48, 24), (119, 60), (24, 12), (48, 23.976), (4, 2)])
def test_video_of_two_seconds_is_taken(nodes, frames, fps):
    assert len(nodes.video(frames=picture(1, 4, 4, batch=frames), fps=fps)) == 1


def test_text_on_the_video_socket_is_refused(nodes):
    with pytest.raises(ValueError, match=r"1 of the chain: expected a VIDEO, got str\. Connect Load Video"):
        nodes.video(video="clip.mp4")


def test_file_that_is_no_video_is_refused_with_the_reason(nodes, from_file, tmp_path):
    file = tmp_path / "broken.mp4"
    file.write_bytes(b"no video at all" * 100)
    with pytest.raises(ValueError, match=r"1 of the chain: expected a video that can be decoded, got InvalidDataError"):
        nodes.video(video=from_file(file))
    with pytest.raises(ValueError, match="expected a video that can be decoded, got FileNotFoundError"):
        nodes.video(video=from_file(tmp_path / "missing.mp4"))


def test_file_without_pictures_is_refused(nodes, from_file, tmp_path):
    import av
    from h3te_tests.video_files import _write_tone

    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        _write_tone(container, container.add_stream("aac", rate=32000, layout="mono"), 1.0)
    with pytest.raises(ValueError, match="1 of the chain: expected "):
        nodes.video(video=from_file(tmp_path / "sound.mp4"))


def test_stop_while_decoding_is_not_taken_for_a_broken_file(nodes, comfy):  # noqa: F811
    def stop():
        raise comfy.model_management.InterruptProcessingException()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        nodes.video(video=SimpleNamespace(get_components=stop))


# sounds


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        ({"waveform": torch.full((1, 2, 9), math.nan), "sample_rate": 32000}, "expected finite sound, got NaN"),
        ({"waveform": torch.full((1, 2, 9), math.inf), "sample_rate": 32000}, "expected finite sound"),
        ({"waveform": torch.zeros(1, 2, 0), "sample_rate": 32000}, r"got waveform \[1, 2, 0\]"),
        ({"waveform": torch.zeros(9), "sample_rate": 32000}, r"got waveform \[9\]"),
        ({"waveform": torch.zeros(2, 2, 9), "sample_rate": 32000}, r"got waveform \[2, 2, 9\]"),
        ({"waveform": torch.zeros(0, 2, 9), "sample_rate": 32000}, r"got waveform \[0, 2, 9\]"),
        ({"waveform": torch.zeros(1, 2, 9, dtype=torch.int16), "sample_rate": 32000}, "floats from -1 to 1, got torch"),
        ({"waveform": torch.zeros(1, 2, 9), "sample_rate": 0}, "expected AUDIO with a sample rate in Hz, got 0"),
        ({"waveform": torch.zeros(1, 2, 9), "sample_rate": math.nan}, "a sample rate in Hz, got nan"),
        ({"waveform": torch.zeros(1, 2, 9), "sample_rate": -1}, "a sample rate in Hz, got -1"),
        ({"waveform": torch.zeros(1, 2, 9)}, "a sample rate in Hz, got None"),
        ({"sample_rate": 32000}, "expected AUDIO with one waveform"),
        (torch.zeros(1, 2, 9), "expected AUDIO with one waveform .* got Tensor"),
        (None, "expected AUDIO with one waveform .* got NoneType"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_sound_is_refused_at_its_node_and_on_every_socket(nodes, encode, wrong, got):
    with pytest.raises(ValueError, match=rf"Reference Audio \(H3TE\) 1 of the chain: .*{got}"):
        nodes.audio(wrong)
    videos = {"ref_video_0": picture(1, 64, 64, batch=48)}
    if wrong is None:  # an unlinked socket
        return
    with pytest.raises(ValueError, match=f"ref_audio_0: .*{got}"):
        encode(ref_videos=videos, ref_audios={"ref_audio_0": wrong})
    with pytest.raises(ValueError, match=f"soundtrack of ref_video_0: .*{got}"):
        encode(ref_videos=videos, ref_video_audios={"ref_video_audio_0": wrong})
    chain = nodes.video(frames=videos["ref_video_0"], soundtrack=wrong)
    with pytest.raises(ValueError, match=rf"soundtrack of Reference Video \(H3TE\) 1 of the chain: .*{got}"):
        encode(references=chain)


def test_mono_and_other_sample_rates_reach_the_audio_vae_at_its_own_rate(nodes, encode):
    mono = {"waveform": torch.zeros(1, 1, 8000), "sample_rate": 8000}
    chain = nodes.audio(mono, references=nodes.image(picture(1)))
    conditioning, _ = encode(references=chain, vae=StandInVAE(), audio_vae=StandInAudioVAE())
    assert conditioning[0][1]["minimax_refs"][1]["ref_audio_t"] == 40


@pytest.fixture
def encode(comfy, tiny_clip):  # noqa: F811
    """(CONDITIONING, node text) of the encode node."""
    from h3te.nodes.encode_references import EncodeReferences

    def run(**inputs):
        size = {"width": 256, "height": 192, "length": 22}
        output = EncodeReferences.execute(**{"clip": tiny_clip, "prompt": "", **size, **inputs})
        return output.args[0][0], output.ui["text"][0]

    return run
