"""Frames and seconds of keyframes -> frames of the video, from either end; two at one frame are refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from h3te.nodes.chains import KeyframeItem
from h3te.nodes.host.keyframes import fit_keyframes, resolved_frame
from h3te.nodes.host.references import Target
from h3te_tests.comfy_host import picture

ROOT = Path(__file__).resolve().parents[1]
VIDEO = Target(64, 32, 22)


@pytest.mark.parametrize(("given", "frame"), [(0, 0), (21, 21), (-1, 21), (-22, 0), (8, 8), (-3, 19)])
def test_frames_count_from_either_end(given, frame):
    assert resolved_frame(KeyframeItem(picture(1), given), VIDEO) == frame


@pytest.mark.parametrize("frame", [22, -23, 9999, -9999])
def test_frame_outside_the_video_is_refused(frame):
    told = f"middle: expected a frame from -22 to 21 of the video's 22 frames, got {frame}. Choose one inside, or raise"
    with pytest.raises(ValueError) as error:
        resolved_frame(KeyframeItem(picture(1), frame, where="middle"), VIDEO)
    assert str(error.value).startswith(told)


SECONDS = [
    (0.0, 0), (-0.0, 0), (0.02, 0), (1 / 48, 1), (0.5, 12), (21 / 24, 21),
    (22 / 24, 21), (0.92, 21),  # the end of the video is inside it, and less than half a frame is rounding
    (-1 / 24, 21), (-0.001, 21), (-0.5, 10), (-22 / 24, 0), (-0.92, 0),
]  # fmt: skip


@pytest.mark.parametrize(("second", "frame"), SECONDS)
def test_seconds_mean_the_nearest_frame_of_the_video(second, frame):
    assert resolved_frame(KeyframeItem(picture(1), 5, second=second), VIDEO) == frame


@pytest.mark.parametrize("frames", [5, 22, 124, 362, 3600])
def test_second_of_every_frame_is_that_frame(frames):
    video = Target(64, 32, frames)
    for frame in range(frames):
        for second in (frame / 24, round(frame / 24, 2), (frame - frames) / 24):
            assert resolved_frame(KeyframeItem(picture(1), second=second), video) == frame


def test_seconds_on_the_help_page_are_what_the_node_computes():
    page = (ROOT / "web" / "docs" / "H3TEKeyframe.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-?[\d.]+)[^|]* \| (\d+)[^|]* \|$", page, flags=re.MULTILINE)
    assert len(rows) == 7
    for second, frame in rows:
        assert resolved_frame(KeyframeItem(picture(1), second=float(second)), Target(64, 32, 124)) == int(frame)


@pytest.mark.parametrize("second", [0.94, -0.94, 400.0, math.nan, math.inf, -math.inf])
def test_seconds_outside_the_video_are_refused(second):
    told = f"expected a second from -0.917 to 0.917 of the video's 22 frames at 24 fps, got {second:g}. Choose one"
    with pytest.raises(ValueError) as error:
        resolved_frame(KeyframeItem(picture(1), second=second, where="middle"), VIDEO)
    assert str(error.value).startswith(f"middle: {told}")


SAME = [
    ([{"frame": 0}, {"frame": 0}], "one and two", 0),
    ([{"frame": -1}, {"second": 22 / 24}], "one and two", 21),
    ([{"frame": 12}, {"second": 0.5}], "one and two", 12),
    ([{"frame": -4}, {"frame": 1}, {"frame": 18}], "one and three", 18),
]


@pytest.mark.parametrize(("places", "named", "frame"), SAME, ids=["start", "end", "frame and second", "not neighbours"])
@pytest.mark.parametrize("show", [True, False])
def test_two_keyframes_at_one_frame_are_refused_by_both_names(places, named, frame, show):
    names = ("one", "two", "three")
    items = [KeyframeItem(picture(2), where=n, show=show, **p) for n, p in zip(names, places, strict=False)]
    with pytest.raises(
        ValueError, match=f"{named}: expected keyframes at different frames, got frame {frame} for both"
    ):
        fit_keyframes(items, VIDEO)


def test_keyframes_keep_the_order_given():
    items = [KeyframeItem(picture(i), frame, where=str(i)) for i, frame in enumerate((21, 3, 12))]
    assert [(k.frame, k.where) for k in fit_keyframes(items, VIDEO)] == [(21, "0"), (3, "1"), (12, "2")]
