"""Stop is heard between two pictures and between two frames while a request is prepared, and nothing swallows it."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_encode_keyframes import encode as encode_keyframes  # noqa: F401 (fixture)
from h3te_tests.test_encode_references import encode as encode_references  # noqa: F401 (fixture)


@pytest.fixture
def stop_after(comfy, monkeypatch):  # noqa: F811
    """stop_after(module, name, count): Stop is pressed in the call of that number; gives the list of calls."""

    def install(module, name: str, count: int) -> list:
        calls, plain = [], getattr(module, name)

        def pressing(*args, **kwargs):
            calls.append(name)
            if len(calls) == count:
                comfy.model_management.interrupt_current_processing()
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, pressing)
        return calls

    yield install
    comfy.model_management.interrupt_current_processing(False)


@pytest.fixture
def interrupt(comfy):  # noqa: F811
    return comfy.model_management.InterruptProcessingException


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_stop_while_frames_are_converted_ends_within_one(encode_references, stop_after, interrupt, channels):  # noqa: F811
    from h3te.nodes.host import images

    calls = stop_after(images, "to_uint8", 3)
    with pytest.raises(interrupt):
        encode_references(ref_videos={"ref_video_0": picture(1, 64, 96, channels, batch=60)}, length=56)
    assert len(calls) == 3


def test_stop_while_frames_are_resized_ends_within_one(encode_references, stop_after, interrupt):  # noqa: F811
    from h3te.encoder import geometry

    calls = stop_after(geometry, "_lanczos", 3)
    with pytest.raises(interrupt):
        encode_references(ref_videos={"ref_video_0": picture(1, 60, 90, batch=60)}, length=56)
    assert len(calls) == 3


@pytest.mark.parametrize("batch", [True, False])
def test_stop_between_reference_pictures_ends_before_the_next(encode_references, stop_after, interrupt, batch):  # noqa: F811
    from h3te.encoder import geometry

    pictures = picture(1, 300, 400, batch=4)
    given = {"ref_image_0": pictures} if batch else {f"ref_image_{i}": pictures[i : i + 1] for i in range(4)}
    calls = stop_after(geometry, "_lanczos", 2)
    with pytest.raises(interrupt):
        encode_references(ref_images=given)
    assert len(calls) == 2


def test_stop_between_keyframes_ends_before_the_next(encode_keyframes, stop_after, interrupt):  # noqa: F811
    from h3te.encoder import geometry

    calls = stop_after(geometry, "_lanczos", 1)
    with pytest.raises(interrupt):
        encode_keyframes(first_frame=picture(1), last_frame=picture(2))
    assert len(calls) == 1


def test_stop_between_latents_ends_before_the_next(encode_references, stop_after, interrupt):  # noqa: F811
    vae = StandInVAE()
    calls = stop_after(vae, "encode", 1)
    with pytest.raises(interrupt):
        encode_references(ref_images={"ref_image_0": picture(1), "ref_image_1": picture(2)}, vae=vae)
    assert len(calls) == 1


def test_frames_at_another_rate_are_the_same_picked_one_by_one(comfy):  # noqa: F811
    from h3te.nodes.chains import VideoItem
    from h3te.nodes.host.reference_videos import used_frames

    source = picture(1, 8, 8, batch=80)
    whole = (source * 255).round().to(torch.uint8)
    for fps, picked in ((60, [1, 3, 6, 8]), (12, [0, 0, 1, 1]), (24, [0, 1, 2, 3])):
        for given in (source, whole):
            used = used_frames(VideoItem(given, fps), 22, (255, 255, 255))
            assert used.shape == (22, 8, 8, 3)
            assert torch.equal(used[:4], whole[picked])
