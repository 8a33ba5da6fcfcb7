"""VIDEO files that are long, keep no constant rate or cannot be decoded. Where the host can trim a file, no more of it
is decoded than can be used; on hosts that cannot, the same frames and the same sound come of the whole."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from h3te_tests.comfy_host import comfy, sound, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_reference_nodes import encode, nodes  # noqa: F401 (fixtures)
from h3te_tests.test_reference_video_node import from_file  # noqa: F401 (fixture)
from h3te_tests.video_files import level_of, write_video

USED = 364  # source frames at 24 fps that the longest video can come from


@pytest.fixture
def decoded(comfy, monkeypatch) -> list[int]:  # noqa: F811
    """How many frames the host decoded, each time."""
    from comfy_api.input_impl import VideoFromFile

    counts, plain = [], VideoFromFile.get_components

    def counting(self):
        parts = plain(self)
        counts.append(len(parts.images))
        return parts

    monkeypatch.setattr(VideoFromFile, "get_components", counting)
    return counts


def trims() -> bool:
    from comfy_api.input_impl import VideoFromFile

    return hasattr(VideoFromFile, "as_trimmed")


def write_uneven(file, times: list[int], rate: int = 24):
    """Matroska of frames at `times` (milliseconds) whose header names `rate`."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mjpeg", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for k, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), level_of(k), dtype=np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame.reformat(format="yuvj420p")))
        container.mux(stream.encode())
    return file


# long files


@pytest.mark.parametrize("name", ["long.mp4", "long.mkv"])
def test_long_file_is_decoded_no_further_than_can_be_used(nodes, from_file, tmp_path, decoded, name):  # noqa: F811
    file = write_video(tmp_path / name, frames=960, fps=24, tone=40.0)
    whole = from_file(file).get_components()
    decoded.clear()
    (item,) = nodes.video(video=from_file(file))
    assert (len(item.frames), item.total, item.fps) == (USED, 960, 24.0)
    assert torch.equal(item.frames, (whole.images[:USED] * 255).round().to(torch.uint8))
    assert torch.equal(item.soundtrack["waveform"], whole.audio["waveform"])
    assert item.soundtrack["sample_rate"] == whole.audio["sample_rate"]
    assert decoded == ([USED + 48] if trims() else [960])


def test_long_file_without_sound_stays_silent(nodes, from_file, tmp_path):  # noqa: F811
    (item,) = nodes.video(video=from_file(write_video(tmp_path / "mute.mp4", frames=960, fps=24)))
    assert item.soundtrack is None


@pytest.mark.parametrize("given", [{"with_sound": False}, {"soundtrack": sound(1.0)}])
def test_sound_of_a_long_file_that_is_not_wanted_is_not_read(nodes, from_file, tmp_path, monkeypatch, given):  # noqa: F811
    from h3te.nodes.host import video_files

    monkeypatch.setattr(video_files, "whole_sound", lambda video: pytest.fail("the sound was read"))
    file = write_video(tmp_path / "long.mp4", frames=960, fps=24, tone=40.0)
    (item,) = nodes.video(video=from_file(file), **given)
    assert item.soundtrack is given.get("soundtrack")


@pytest.mark.parametrize("start", [3.0, -30.0])
def test_trim_that_the_file_came_with_is_kept(nodes, comfy, tmp_path, start):  # noqa: F811
    from comfy_api.input_impl import VideoFromFile

    file = str(write_video(tmp_path / "long.mp4", frames=960, fps=24, tone=40.0))
    video = VideoFromFile(file, start_time=start, duration=25.0) if trims() else VideoFromFile(file)
    whole = video.get_components()
    (item,) = nodes.video(video=video)
    assert (len(item.frames), item.total) == (USED, len(whole.images))
    assert torch.equal(item.frames, (whole.images[:USED] * 255).round().to(torch.uint8))
    assert item.soundtrack["waveform"].shape == whole.audio["waveform"].shape
    assert torch.equal(item.soundtrack["waveform"], whole.audio["waveform"])


def test_short_pictures_beside_a_long_sound_are_all_there(nodes, from_file, tmp_path):  # noqa: F811
    (item,) = nodes.video(video=from_file(write_video(tmp_path / "song.mp4", frames=60, fps=24, tone=40.0)))
    assert (len(item.frames), item.total) == (60, 60)
    assert item.soundtrack["waveform"].shape[-1] / 32000 == pytest.approx(40.0, abs=0.1)


def test_long_file_of_fewer_frames_than_its_rate_says_loses_none(nodes, from_file, tmp_path, decoded):  # noqa: F811
    """24 s, in which 17 frames a second come where the header names 24: trimmed by time it would be too short."""
    (item,) = nodes.video(video=from_file(write_uneven(tmp_path / "slow.mkv", [k * 60 for k in range(400)])))
    assert (len(item.frames), item.total, item.fps) == (USED, 400, 24.0)
    assert decoded[-1] == 400


def test_stop_is_heard_while_the_packets_of_a_file_are_read(nodes, comfy, from_file, tmp_path):  # noqa: F811
    from h3te.nodes.host.video_files import whole_sound

    video = from_file(write_video(tmp_path / "clip.mp4", frames=48, fps=24, tone=2.0))
    if trims():
        comfy.model_management.interrupt_current_processing()
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            whole_sound(video)
    comfy.model_management.interrupt_current_processing()
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        nodes.video(video=video)


# pace


def test_variable_frame_rate_is_said_on_the_node(nodes, encode, from_file, tmp_path):  # noqa: F811
    times = [k * 20 if k < 30 else 600 + (k - 30) * 98 for k in range(60)]  # 3.44 s, where 24 fps are 2.5
    chain = nodes.video(video=from_file(write_uneven(tmp_path / "phone.mkv", times)))
    assert chain[0].played == pytest.approx(59 / (times[-1] / 1000), rel=1e-3)
    assert chain[0].fps == pytest.approx(24)
    said = encode(references=chain)[1]
    assert "Reference Video (H3TE) 1 of the chain plays at another speed than its sound: its file names 24" in said
    assert "and times 17.14; convert it to a constant frame rate" in said


@pytest.mark.parametrize(
    ("name", "frames", "fps"),
    [("a.mp4", 48, 24), ("a.mkv", 90, 30), ("a.mkv", 60, Fraction(24000, 1001)), ("a.mp4", 960, 24), ("a.ts", 72, 25)],
)
def test_constant_frame_rate_is_not_remarked(nodes, encode, from_file, tmp_path, name, frames, fps):  # noqa: F811
    """A sound that is longer than its pictures is no other pace."""
    chain = nodes.video(video=from_file(write_video(tmp_path / name, frames=frames, fps=fps, tone=frames / fps + 3)))
    assert chain[0].played == pytest.approx(float(fps), rel=0.01)
    assert "another speed" not in encode(references=chain)[1]


# what cannot be decoded


def test_error_of_the_host_about_missing_times_names_the_video(nodes):  # noqa: F811
    def compare():
        return None < 0

    with pytest.raises(ValueError, match=r"1 of the chain: expected a video that can be decoded, got TypeError: .*mp4"):
        nodes.video(video=SimpleNamespace(get_components=compare))


def test_raw_stream_without_times_is_refused_by_name(nodes, from_file, tmp_path):  # noqa: F811
    file = tmp_path / "raw.h264"
    with av.open(str(file), "w", format="h264") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for k in range(72):
            picture = np.full((64, 96, 3), level_of(k), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match=r"1 of the chain: expected a video that can be decoded, got .*mp4"):
        nodes.video(video=from_file(file))
