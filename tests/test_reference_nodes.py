"""The nodes that build a chain of references: what they put on it, and what they refuse at their own door."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
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
        with pytest.raises(
            ValueError, match=rf"{title} \(H3TE\): expected references to be a chain of references, got"
        ):
            add()


def test_keyframes_are_no_references(nodes):
    from h3te.nodes.chains import KeyframeItem

    told = (
        "to be a chain of references, got a chain of keyframes. Connect Reference Image, Reference Video or Reference"
    )
    with pytest.raises(ValueError, match=told):
        nodes.image(picture(1), references=(KeyframeItem(picture(1)),))


# switches


@pytest.mark.parametrize("value", ["false", None, 1, 0.0], ids=repr)
def test_switch_over_a_link_is_true_or_false_and_not_taken_by_its_truth(nodes, value):
    clip = picture(1, batch=48)
    for title, name, add in (
        ("Image", "vision_only", lambda **switch: nodes.image(picture(1), **switch)),
        ("Image", "timed", lambda **switch: nodes.image(picture(1), **switch)),
        ("Video", "with_sound", lambda **switch: nodes.video(frames=clip, **switch)),
        ("Video", "vision_only", lambda **switch: nodes.video(frames=clip, **switch)),
        ("Audio", "vision_only", lambda **switch: nodes.audio(sound(), **switch)),
    ):
        told = rf"Reference {title} \(H3TE\) 1 of the chain, {name}: expected True or False, got {value!r}\. Connect a"
        with pytest.raises(ValueError, match=told):
            add(**{name: value})


# pictures


def test_second_counts_only_when_timed(nodes):
    assert nodes.image(picture(1), second=3.5)[0].timestamp is None
    assert nodes.image(picture(1), timed=True, second=3.5)[0].timestamp == 3.5
    assert nodes.image(picture(1), timed=True, second=2)[0].timestamp == 2.0  # an INT over a link
    assert nodes.image(picture(1), timed=True, second=3600)[0].timestamp == 3600.0


def test_minus_zero_seconds_are_the_start(nodes):
    assert math.copysign(1, nodes.image(picture(1), timed=True, second=-0.0)[0].timestamp) == 1


@pytest.mark.parametrize("second", [-0.1, 3600.1, math.nan, math.inf, "2", None, True])
def test_second_that_is_none_is_refused_when_timed_and_not_read_otherwise(nodes, second):
    told = rf"Reference Image .* 1 of the chain: expected a second from 0 to 3600, got {second!r}\. Correct it"
    with pytest.raises(ValueError, match=told):
        nodes.image(picture(1), timed=True, second=second)
    assert nodes.image(picture(1), second=second)[0].timestamp is None


def test_flat_picture_is_refused_at_its_own_node(nodes):
    with pytest.raises(ValueError, match=r"Reference Image .*: expected sides within 1:4 and 4:1, got 8000x100\. Crop"):
        nodes.image(torch.zeros(1, 100, 8000, 3))
    nodes.image(torch.zeros(1, 100, 400, 3))


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
        ({"waveform": torch.zeros(1, 2, 9), "sample_rate": 44100.5}, r"a sample rate in Hz, got 44100\.5"),
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
    for rate in (8000, 8000.0, np.int64(8000), 32000, 44100):
        mono = {"waveform": torch.zeros(1, 1, int(rate)), "sample_rate": rate}
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
