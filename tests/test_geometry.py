"""Sizes, frame counts and pixel fits applied before encoding."""

from __future__ import annotations

import math
import random
import tracemalloc

import numpy as np
import pytest
import torch
from h3te.encoder import geometry, lanczos
from h3te.encoder.geometry import (
    audio_latent_frames,
    canvas_size,
    contain,
    cover_crop,
    fit_keyframe,
    latent_frames,
    reference_image_size,
    reference_video_frames,
    reference_video_size,
    released_fit,
    resize,
    resize_frames,
    snap_frames,
    snap_frames_down,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image


def picture(width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 5) % 256, (y * 7) % 256, (x * y) % 256], axis=-1).astype(np.uint8)


def resized_by_pil(array: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(array).resize((width, height), Image.Resampling.LANCZOS))


CANVASES = [
    ((1920, 1080), (1344, 768)),
    ((1080, 1920), (768, 1344)),
    ((1, 1), (768, 768)),
    ((1024, 768), (1024, 768)),
    ((3000, 1000), (1760, 576)),
    ((2560, 1080), (1568, 672)),
    ((10000, 10), (32128, 32)),
]


@pytest.mark.parametrize("source,canvas", CANVASES)
def test_canvas_of_an_aspect_ratio(source, canvas):
    assert canvas_size(*source) == canvas


@given(st.integers(1, 8000), st.integers(1, 8000))
def test_canvas_is_on_the_grid_and_turns_with_the_source(width, height):
    canvas = canvas_size(width, height)
    assert all(side % 32 == 0 and side >= 32 for side in canvas)
    if max(width, height) <= 4 * min(width, height):
        assert canvas[0] * canvas[1] <= 768 * 1344 * 1.06  # rounding may exceed the cap a little
        assert max(abs(a - b) for a, b in zip(canvas_size(height, width), canvas[::-1], strict=True)) <= 32


IMAGE_SIZES = [
    ((4000, 3000), "match", (1184, 864)),  # down to the area of 1344x768
    ((640, 480), "match", (640, 480)),
    ((500, 333), "match", (512, 320)),
    ((20, 10), "match", (32, 32)),
    ((4000, 3000), "max", (2720, 2048)),
    ((1000, 700), "max", (992, 704)),
    ((1000, 700), "official", (2912, 2048)),
    ((4096, 1024), "official", (8192, 2048)),
    ((64, 64), "official", (2048, 2048)),
    ((333, 517), "none", (333, 517)),
]


@pytest.mark.parametrize("source,mode,size", IMAGE_SIZES)
def test_reference_image_size(source, mode, size):
    assert reference_image_size(*source, mode, 1344, 768) == size


def test_reference_video_size_by_both_rules():
    assert reference_video_size(640, 360) == (1344, 768)
    assert reference_video_size(640, 360, "host") == (640, 352)
    assert reference_video_size(1920, 1080, "host") == reference_video_size(1920, 1080, "released") == (1344, 768)
    assert reference_video_size(10, 10, "host") == (32, 32)


@pytest.mark.parametrize(
    "frames,up,down", [(5, 5, 5), (6, 22, 5), (22, 22, 22), (23, 39, 22), (124, 124, 124), (125, 141, 124)]
)
def test_frames_snap_to_17k_plus_5(frames, up, down):
    assert snap_frames(frames) == up
    assert snap_frames_down(frames) == down


def test_frames_below_five_snap_up_only():
    assert snap_frames(1) == snap_frames(0) == 5
    with pytest.raises(ValueError, match=r"geometry: expected at least 5 frames, got 4\. Use"):
        snap_frames_down(4)


@pytest.mark.parametrize("frames,video,audio", [(5, 2, 8), (22, 7, 37), (124, 37, 207), (362, 107, 603)])
def test_latent_frames(frames, video, audio):
    assert latent_frames(frames) == video
    assert audio_latent_frames(frames) == audio


@pytest.mark.parametrize("frames", [4, 6, -12, 123])
def test_latent_frames_refuses_counts_off_the_grid(frames):
    with pytest.raises(ValueError, match=rf"geometry: expected 17k\+5 frames, got {frames}"):
        latent_frames(frames)


def test_reference_video_frames_by_both_rules():
    assert reference_video_frames(60, 124) == 60
    assert reference_video_frames(60, 124, "host") == 56
    assert reference_video_frames(300, 124) == reference_video_frames(300, 124, "host") == 124
    with pytest.raises(ValueError, match="expected at least 5 frames, got 3"):
        reference_video_frames(3, 124, "host")


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, lambda a: torch.from_numpy(a).float() / 255])
def test_resize_is_pil_lanczos_on_rounded_uint8(convert):
    source = picture(50, 40)
    resized = resize(convert(source), 96, 64)
    assert resized.dtype == torch.uint8
    assert np.array_equal(resized.numpy(), resized_by_pil(source, 96, 64))


def test_resize_rounds_floats_before_it_resizes():
    source = torch.full((8, 8, 3), 0.9999)
    assert resize(source, 16, 16).min() == 255


def test_pixels_of_the_right_size_pass_through():
    source = torch.from_numpy(picture(64, 32))
    assert resize(source, 64, 32).data_ptr() == source.data_ptr()
    assert cover_crop(source, 64, 32).equal(source)
    assert contain(source, 64, 32).equal(source)


def test_resize_frames_equals_resize_of_each():
    frames = np.stack([picture(50, 40), picture(50, 40)[::-1]])
    resized = resize_frames(frames, 64, 32)
    assert resized.shape == (2, 32, 64, 3)
    assert all(torch.equal(ours, resize(frame, 64, 32)) for ours, frame in zip(resized, frames, strict=True))
    assert resize_frames(resized, 64, 32).data_ptr() == resized.data_ptr()


@pytest.mark.parametrize("width,height", [(100, 60), (60, 100), (33, 77), (300, 31), (64, 64)])
def test_cover_crop_scales_rounds_and_crops_as_released(width, height):
    source = picture(width, height)
    scale = max(64 / width, 96 / height)
    inner = round(width * scale), round(height * scale)
    left, top = (inner[0] - 64) // 2, (inner[1] - 96) // 2
    expected = resized_by_pil(source, *inner)[top : top + 96, left : left + 64]
    assert np.array_equal(cover_crop(source, 64, 96).numpy(), expected)


def test_contain_keeps_the_whole_picture_on_a_colour():
    source = picture(100, 50)
    canvas = contain(source, 64, 96, colour=(9, 8, 7))
    assert canvas.shape == (96, 64, 3)
    assert np.array_equal(canvas[32:64].numpy(), resized_by_pil(source, 64, 32))
    assert torch.equal(canvas[:32], torch.tensor([9, 8, 7], dtype=torch.uint8).expand(32, 64, 3))


def test_fit_keyframe_names_the_three_fits():
    source = picture(100, 50)
    assert fit_keyframe(source, 64, 96, "stretch").equal(resize(source, 64, 96))
    assert fit_keyframe(source, 64, 96, "crop").equal(cover_crop(source, 64, 96))
    assert fit_keyframe(source, 64, 96, "pad").equal(contain(source, 64, 96))
    assert [released_fit(position) for position in range(3)] == ["stretch", "crop", "crop"]


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["stretch", "crop", "pad"]))
def test_every_fit_fills_the_canvas_exactly(width, height, fit):
    assert fit_keyframe(np.zeros((height, width, 3), dtype=np.uint8), 64, 32, fit).shape == (32, 64, 3)


def pil_fit(source: np.ndarray, width: int, height: int, fit: str) -> np.ndarray:
    """The three fits written with PIL's own resize, crop and paste."""
    image, (w, h) = Image.fromarray(source), source.shape[1::-1]
    if fit == "stretch":
        return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
    scale = (max if fit == "crop" else min)(width / w, height / h)
    image = image.resize((max(1, round(w * scale)), max(1, round(h * scale))), Image.Resampling.LANCZOS)
    left, top = abs(image.width - width) // 2, abs(image.height - height) // 2
    if fit == "crop":
        return np.asarray(image.crop((left, top, left + width, top + height)))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(image, (left, top))
    return np.asarray(canvas)


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_every_fit_equals_pil_at_200_random_sizes(fit):
    sizes, pixels = random.Random(7), np.random.default_rng(7)
    for _ in range(200):
        w, h, width, height = (sizes.randint(9, 300) for _ in range(4))
        source = pixels.integers(0, 256, (h, w, 3), dtype=np.uint8)
        assert np.array_equal(fit_keyframe(source, width, height, fit).numpy(), pil_fit(source, width, height, fit))


def test_window_equals_the_part_of_what_pil_resizes_at_500_random_sizes():
    """One axis after the other, so that the order is PIL's of every release."""
    sizes, pixels = random.Random(9), np.random.default_rng(9)
    for _ in range(500):
        w, h, width, height = (sizes.choice([sizes.randint(1, 9), sizes.randint(1, 300)]) for _ in range(4))
        left, top = sizes.randint(0, width - 1), sizes.randint(0, height - 1)
        extent = sizes.randint(1, width - left), sizes.randint(1, height - top)
        source = pixels.integers(0, 256, (h, w, 3), dtype=np.uint8)
        whole = resized_by_pil(resized_by_pil(source, width, h), width, height)
        part = lanczos.window(source, (width, height), (left, top), extent)
        assert np.array_equal(part, whole[top : top + extent[1], left : left + extent[0]])


EXTREME = [(300, 1), (1, 60), (120, 2), (3, 90), (1, 1), (64, 32)]


@pytest.mark.parametrize("width,height", EXTREME)
def test_cover_crop_of_extreme_aspects_gives_the_released_bytes(width, height, monkeypatch):
    source = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    whole = cover_crop(source, 64, 32)
    monkeypatch.setattr(geometry, "COVERING_MAX_PIXELS", 0)
    windows = []
    monkeypatch.setattr(geometry, "window", lambda *a: windows.append(a[1]) or lanczos.window(*a))
    assert cover_crop(source, 64, 32).equal(whole)
    assert len(windows) == (max(64 / width, 32 / height) ** 2 * width * height > 2 * 64 * 32)  # else PIL's, as before


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("width,height", [(8000, 1), (1, 8000), (100_000, 2), (1, 1)])
def test_no_fit_makes_a_giant_picture_on_the_way(width, height, fit, monkeypatch):
    """8000x1 scaled until it covers 1344x768 would be 6144000x768: 14 GB."""
    made = []
    resize_whole = geometry._lanczos
    monkeypatch.setattr(geometry, "_lanczos", lambda image, size: made.append(size) or resize_whole(image, size))
    source = np.random.default_rng(4).integers(0, 256, (height, width, 3), dtype=np.uint8)
    tracemalloc.start()
    fitted = fit_keyframe(source, 1344, 768, fit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted.shape == (768, 1344, 3)
    assert peak < 200e6
    assert all(w * h <= 1344 * 1344 for w, h in made)


def test_prepared_references_equal_pil_at_200_random_sizes():
    sizes, pixels = random.Random(8), np.random.default_rng(8)
    for _ in range(200):
        w, h = sizes.randint(9, 300), sizes.randint(9, 300)
        source = pixels.integers(0, 256, (h, w, 3), dtype=np.uint8)
        width, height = reference_image_size(w, h, "match", sizes.randint(32, 300), sizes.randint(32, 300))
        assert np.array_equal(resize(source, width, height).numpy(), resized_by_pil(source, width, height))


REFUSED = [
    (lambda: canvas_size(0, 10), "geometry: expected a size of at least 1x1, got 0x10"),
    (lambda: reference_image_size(10, 0, "none"), "expected a size of at least 1x1, got 10x0"),
    (lambda: reference_image_size(10, 10, "match"), "the target's width and height for mode 'match', got None"),
    (lambda: reference_image_size(10, 10, "huge"), "a size mode of match, max, official, none, got 'huge'. Choose one"),
    (lambda: reference_image_size(401, 100, "official"), "between 1:4 and 4:1, got 401x100. Crop it"),
    (lambda: reference_video_size(10, 10, "mine"), "expected a rule of released, host, got 'mine'"),
    (lambda: reference_video_frames(10, 22, "mine"), "expected a rule of released, host, got 'mine'"),
    (lambda: fit_keyframe(picture(4, 4), 32, 32, "zoom"), "expected a fit of stretch, crop, pad, got 'zoom'"),
    (lambda: fit_keyframe(picture(4, 4), 32, 32, 1, where="last_frame"), "last_frame: expected a fit of stretch, crop"),
    (lambda: fit_keyframe(picture(4, 4), 0, 32, "crop"), "expected a size of at least 1x1, got 0x32"),
    (lambda: resize(picture(4, 4), 0, 4), "expected a size of at least 1x1, got 0x4"),
    (lambda: contain(picture(4, 4), 8, 8, colour=(0, 0, 300)), "a colour of three values 0..255, got (0, 0, 300)"),
    (lambda: resize(np.zeros((4, 4, 4)), 8, 8, where="first_frame"), "first_frame: expected pixels of shape [H, W, 3]"),
]


@pytest.mark.parametrize("call,message", REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_geometry_refuses(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


def test_aspect_of_four_to_one_is_still_official():
    assert reference_image_size(400, 100, "official") == (8192, 2048)
    assert math.isclose(geometry.REFERENCE_MAX_ASPECT, 4)
