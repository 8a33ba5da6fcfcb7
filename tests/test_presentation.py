"""The order, labels and timestamps of a request, before any tokenising."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from h3te.encoder.pixels import image_patches, video_patches
from h3te.encoder.presentation import (
    AudioReference,
    ImageReference,
    Part,
    TextSegment,
    VideoReference,
    VisionSegment,
    present,
    present_each,
)


def image(height: int = 64, width: int = 64, value: int = 90) -> torch.Tensor:
    return torch.full((height, width, 3), value, dtype=torch.uint8)


def clip(frames: int, height: int = 64, width: int = 96) -> torch.Tensor:
    """Frame t is filled with t."""
    return torch.arange(frames, dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, height, width, 3)


def outline(presentation) -> list[str]:
    """Texts as they are, vision blocks as "image 8x8"."""
    return [
        segment.text if isinstance(segment, TextSegment) else "{} {}x{}".format(segment.modality, *segment.grid_hw)
        for segment in presentation.segments
    ]


def test_prompt_alone_is_one_segment_verbatim():
    presentation = present("A (red:1.3) fox")
    assert presentation.segments == (TextSegment("A (red:1.3) fox", "prompt"),)
    assert presentation.image is presentation.video is None
    assert presentation.parts == ()


def test_nothing_at_all_has_no_segments():
    assert present("").segments == present("", []).segments == ()


def test_empty_prompt_adds_no_segment_after_references():
    assert outline(present("", [ImageReference(image())])) == ["<Picture 1>: ", "image 16x16"]


def test_two_keyframes_are_two_pictures_before_the_prompt():
    presentation = present("turns", [ImageReference(image(256, 448)), ImageReference(image(256, 448))])
    assert outline(presentation) == ["<Picture 1>: ", "image 16x28", "<Picture 2>: ", "image 16x28", "turns"]
    assert presentation.segments[1] == VisionSegment("image", 16 * 28 // 4, "Picture 1", (16, 28))
    assert presentation.image.grid_thw.tolist() == [[1, 16, 28]] * 2


def test_references_keep_request_order_and_count_per_modality():
    references = [
        AudioReference(),
        VideoReference(clip(30)),
        ImageReference(image()),
        VideoReference(clip(13), has_audio=True),
        ImageReference(image(256, 320)),
        AudioReference(),
    ]
    assert outline(present("go", references)) == [
        "<Audio 1>: ",
        "<Video 1>: ", "<0.2 seconds>", "video 4x6", "<1.0 seconds>", "video 4x6",
        "<Picture 1>: ", "image 16x16",
        "<Audio 2>: ", "<Video 2>: ", "<0.2 seconds>", "video 4x6",
        "<Picture 2>: ", "image 16x20",
        "<Audio 3>: ",
        "go",
    ]  # fmt: skip


def test_timed_picture_is_stamped_between_its_label_and_its_block():
    """An extension of ours, in the form that videos have."""
    references = [ImageReference(image(), timestamp=1.25), ImageReference(image()), ImageReference(image(), 0)]
    presentation = present("go", references)
    assert outline(presentation) == [
        "<Picture 1>: ", "<1.2 seconds>", "image 16x16",
        "<Picture 2>: ", "image 16x16",
        "<Picture 3>: ", "<0.0 seconds>", "image 16x16",
        "go",
    ]  # fmt: skip
    assert [part.name for part in presentation.parts] == ["Picture 1", "Picture 2", "Picture 3"]
    assert presentation.parts[0] == Part("Picture 1", (1, 16, 16), 66)


def test_minus_zero_seconds_are_written_as_zero():
    references = [ImageReference(image(), timestamp=-0.0), VideoReference(clip(2), timestamps=(-0.0, -0.0))]
    said = [text for text in outline(present("", references)) if "seconds" in text]
    assert said == ["<0.0 seconds>", "<0.0 seconds>"]


def test_prompts_with_the_same_references_share_their_patches_and_are_what_each_is_alone(monkeypatch):
    from h3te.encoder import presentation as module

    prepared, real = [], module.image_patches
    monkeypatch.setattr(module, "image_patches", lambda *a, **k: prepared.append(1) or real(*a, **k))
    given = [ImageReference(image()), VideoReference(clip(13))]
    together = present_each(["a fox", "", "an owl"], iter(given))
    assert prepared == [1]
    assert [outline(each) for each in together] == [outline(present(p, given)) for p in ("a fox", "", "an owl")]
    assert {id(each.image) for each in together} == {id(together[0].image)}
    assert {id(each.video) for each in together} == {id(together[0].video)}
    assert present_each([], given) == []


def test_patches_are_concatenated_per_modality_in_request_order():
    first, second = image(256, 320, 10), image(64, 64, 200)
    presentation = present("", [ImageReference(first), VideoReference(clip(24)), ImageReference(second)])
    expected = torch.cat([image_patches(first).pixel_values, image_patches(second).pixel_values])
    assert torch.equal(presentation.image.pixel_values, expected)
    assert torch.equal(presentation.video.pixel_values, video_patches(clip(24)[::12]).pixel_values)


def test_parts_give_grid_and_vision_tokens_of_each_reference():
    references = [ImageReference(image()), VideoReference(clip(30), has_audio=True)]
    assert present("go", references).parts == (
        Part("Picture 1", (1, 16, 16), 66),
        Part("Audio 1", None, 0),
        Part("Video 1", (2, 4, 6), 2 * (6 + 2)),
    )


def test_odd_samples_repeat_the_last_frame_and_its_time():
    presentation = present("", [VideoReference(clip(30))])  # samples 0, 12, 24 at 0, 0.5, 1 s
    even = video_patches(clip(30)[[0, 12, 24, 24]])
    assert torch.equal(presentation.video.pixel_values, even.pixel_values)
    assert [s.text for s in presentation.segments if isinstance(s, TextSegment)][1:] == [
        "<0.2 seconds>",
        "<1.0 seconds>",
    ]


def test_another_frame_rate_is_resampled_first():
    presentation = present("", [VideoReference(clip(50), fps=50)])  # one second: samples at 0 and 0.5 s
    assert outline(presentation) == ["<Video 1>: ", "<0.2 seconds>", "video 4x6"]
    # A 24 fps slot shows the last frame whose rounded start is not after it: frames 1 (0.48) and 26 (12.48).
    assert torch.equal(presentation.video.pixel_values, video_patches(clip(50)[[1, 26]]).pixel_values)


def test_frames_with_timestamps_are_not_sampled_again():
    frames = clip(4)
    presentation = present("", [VideoReference(frames, fps=1, timestamps=(0.0, 0.5, 7.0, 7.3))])
    assert outline(presentation)[1::2] == ["<0.2 seconds>", "<7.2 seconds>"]
    assert torch.equal(presentation.video.pixel_values, video_patches(frames).pixel_values)


def test_timestamps_may_be_a_tensor():
    seen = [present("", [VideoReference(clip(2), timestamps=t)]) for t in (torch.tensor([0.0, 0.5]), (0.0, 0.5))]
    assert seen[0].segments == seen[1].segments


def test_odd_timestamps_pair_the_last_with_itself():
    presentation = present("", [VideoReference(clip(3), timestamps=(0.0, 0.5, 3.0))])
    assert outline(presentation)[1::2] == ["<0.2 seconds>", "<3.0 seconds>"]
    assert presentation.video.grid_thw.tolist() == [[2, 4, 6]]


def test_one_sample_with_a_timestamp_is_repeated_and_said(caplog):
    with caplog.at_level("INFO"):
        presentation = present("", [VideoReference(clip(1), timestamps=(0.0,))])
    assert outline(presentation) == ["<Video 1>: ", "<0.0 seconds>", "video 4x6"]
    assert torch.equal(presentation.video.pixel_values, video_patches(clip(1).repeat(2, 1, 1, 1)).pixel_values)
    assert "present, <Video 1>: one sampled frame, repeated" in caplog.text


def test_numpy_float_frames_are_taken():
    frames = clip(24).numpy().astype(np.float32) / 255
    assert torch.equal(
        present("", [VideoReference(frames)]).video.pixel_values,
        present("", [VideoReference(clip(24))]).video.pixel_values,
    )


def test_references_may_be_any_iterable():
    assert len(present("", (ImageReference(image()) for _ in range(3))).parts) == 3


@pytest.mark.parametrize("frames,fps,said", [(12, 24, "got 12 at 24 fps"), (25, 50, "got 25 at 50 fps")])
def test_video_of_half_a_second_or_less_is_refused(frames, fps, said):
    with pytest.raises(ValueError, match=r"present, <Video 1>: expected more than 12 frames at 24 fps .*" + said):
        present("", [VideoReference(clip(frames), fps=fps)])


def test_video_too_short_for_any_frame_is_refused():
    with pytest.raises(ValueError, match="got 1 at 100 fps"):
        present("", [VideoReference(clip(1), fps=100)])


REFUSED = [
    (lambda: present(None), "present: expected one string as the prompt, got NoneType. Pass a str."),
    (lambda: present(["a"]), "present: expected one string as the prompt, got list"),
    (lambda: present("", [AudioReference(), image()]), "as reference 2, got Tensor. Wrap the pixels"),
    (lambda: present("", [ImageReference(image()), ImageReference(torch.zeros(9, 9, 4))]), "present, <Picture 2>: "),
    (lambda: present("", ImageReference(image())), "expected a list of references, got ImageReference. Pass"),
    (lambda: present("", None), "expected a list of references, got NoneType. Pass"),
    (lambda: present_each(["a", 5]), "present: expected one string as the prompt, got int. Pass a str."),
    (
        lambda: present("", [ImageReference(image(), -0.5)]),
        "present, <Picture 1>: expected a timestamp in seconds from 0 on, got -0.5. Correct it, or pass None.",
    ),
    (lambda: present("", [ImageReference(image(), float("nan"))]), "in seconds from 0 on, got nan. Correct it"),
    (lambda: present("", [ImageReference(image(), float("inf"))]), "in seconds from 0 on, got inf. Correct it"),
    (lambda: present("", [ImageReference(image(), "2")]), "in seconds from 0 on, got '2'. Correct it"),
    (lambda: present("", [ImageReference(image(), True)]), "in seconds from 0 on, got True. Correct it"),
    (lambda: present("", [VideoReference(clip(2), timestamps=5)]), "timestamps as a list of seconds, got 5. Pass"),
    (lambda: present("", [VideoReference(clip(2), timestamps=(None, 1))]), "a list of seconds, got (None, 1). Pass"),
    (lambda: present("", [VideoReference(image())]), "present, <Video 1>: expected pixels of shape [T, H, W, 3]"),
    (lambda: present("", [VideoReference(clip(30), fps=0)]), "<Video 1>: expected a frame rate above 0, got 0. Pass"),
    (
        lambda: present("", [VideoReference(clip(3), timestamps=(0.0, 0.5))]),
        "present, <Video 1>: expected one timestamp per frame, got 2 for 3 frames. Pass",
    ),
    (lambda: present("", [VideoReference(clip(3), timestamps=())]), "one timestamp per frame, got 0 for 3 frames"),
    (
        lambda: present("", [VideoReference(clip(2), timestamps=(0.0, float("nan")))]),
        "present, <Video 1>: expected timestamps in seconds from 0 on, got (0.0, nan). Correct them.",
    ),
]


@pytest.mark.parametrize("call,message", REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_present_refuses(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
