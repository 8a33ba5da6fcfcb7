"""The official path over the breadth of requests: sizes, frame counts, many references, every order.

Everything is to the last bit, in float32 and in bfloat16, with the released Conv3d in the place of our product;
`test_our_product_...` states what the product costs over all of them.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.presentation import present
from h3te_tests.oracle import official_patches
from h3te_tests.oracle_pair import DTYPES, WHOLE_BOUND, Pair, Tokenizers, equal


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


def image(height: int, width: int, seed: int = 0) -> ImageReference:
    return ImageReference(noise(height, width, 3, seed=seed))


def video(frames: int, height: int, width: int, seed: int = 0, **options) -> VideoReference:
    return VideoReference(noise(frames, height, width, 3, seed=seed), **options)


@pytest.fixture(scope="module")
def tokenizers(tokenizer_folder, tmp_path_factory) -> Tokenizers:
    return Tokenizers(tokenizer_folder, tmp_path_factory.mktemp("official") / "tokenizer")


@pytest.fixture(scope="module", params=DTYPES, ids=["float32", "bfloat16"])
def pair(request, tokenizers) -> Pair:
    return Pair(request.param, tokenizers)


@pytest.fixture(scope="module")
def layout(tokenizers) -> Pair:
    """For what does not depend on the dtype."""
    return Pair(torch.float32, tokenizers)


PROMPT = "As shown, <d>[English] come.</d>"
TEXTS = {
    "a letter": "A",
    "a space": " ",
    "markers": "<d>[French] Oui.</d> <|lyrics_start|>la<|lyrics_end|> <|caption_start|>x<|caption_end|><|cutoff|>",
    "weights": r"A (red:1.3) fox, [soft], \(film\) ((grain)) {a|b} <lora:x:1>",
    "scripts": "雪の中の狐 🦊 café — الثعلب हिन्दी e\u0301\u200d",
    "lines": "a  b\t\tc\r\n\r\nd \n e\n",
    "labels": "<Picture 1>: <Video 2>: <0.2 seconds><Audio 9>: ",
    "2000 words": "word fox " * 1000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(pair, name):
    pair.same_states(TEXTS[name], ())


# Thin strips up to 4096 on a side, the aspect limit of 200 itself, both sides of the 65,536 pixels and of 32.
IMAGE_SIZES = [
    (1, 90), (90, 1), (1, 1), (1, 200), (200, 1), (3, 90), (4096, 21), (21, 4096), (4000, 20), (20, 4000), (32, 4096),
    (4096, 32), (16, 3200), (64, 64), (256, 256), (255, 257), (257, 255), (250, 333), (517, 333), (31, 33), (47, 49),
]  # fmt: skip


@pytest.mark.parametrize("size", IMAGE_SIZES, ids=str)
def test_image_of_any_size(pair, size):
    pair.same_states(PROMPT, [image(*size)])


VIDEO_SIZES = [(1, 90), (90, 1), (1, 200), (31, 31), (32, 32), (5, 9), (20, 300), (45, 45), (33, 47), (100, 150)]
VIDEO_SIZES += [(4096, 21), (21, 4096), (128, 72)]


@pytest.mark.parametrize("size", VIDEO_SIZES, ids=str)
def test_video_of_any_size(pair, size):
    pair.same_states(PROMPT, [video(25, *size)])


@pytest.mark.parametrize("size", [(1, 201), (201, 1), (20, 4001), (4001, 20), (21, 4201)], ids=str)
def test_an_aspect_just_over_200_is_an_error_on_both_sides(size):
    for modality, pixels, reference in (
        ("image", noise(*size, 3), ImageReference(noise(*size, 3))),
        ("video", noise(2, *size, 3), VideoReference(noise(24, *size, 3))),
    ):
        with pytest.raises(ValueError, match="aspect ratio"):
            official_patches(modality, [pixels])
        with pytest.raises(ValueError, match="expected an aspect ratio of at most 200"):
            present("", [reference])


FRAMES = [13, 24, 25, 36, 37, 60, 121, 144, 145, 288, 300, 301, 312, 313, 360, 400]


@pytest.mark.parametrize("frames", FRAMES)
def test_video_of_many_lengths(pair, frames):
    pair.same_states(PROMPT, [video(frames, 32, 48)])


def test_layout_of_videos_on_both_sides_of_every_sample_up_to_400_frames(layout):
    for frames in sorted({*range(13, 401, 10), *range(24, 400, 12), *range(13, 401, 12)}):
        layout.same_request("", [video(frames, 6, 5)])


@pytest.mark.parametrize("frames", [5, 12])
def test_videos_of_half_a_second_are_an_error_on_both_sides(frames):
    reference = video(frames, 32, 48)
    with pytest.raises(ValueError):
        official_patches("video", [reference.frames[::12]])
    with pytest.raises(ValueError, match="expected more than 12 frames"):
        present("", [reference])


def test_nine_images(pair):
    pair.same_states("All of <Picture 9>.", [image(40 + 13 * i, 170 - 11 * i, i) for i in range(9)])


def test_three_videos_two_with_soundtracks(pair):
    videos = [video(13 + 24 * i, 32 + 16 * i, 64, i, has_audio=i > 0) for i in range(3)]
    pair.same_states("All of <Video 3>.", videos)


def test_twelve_references_of_all_kinds(pair):
    images = [image(32, 40 + i, i) for i in range(6)]
    videos = [video(25, 32, 32 + 32 * i, i, has_audio=i == 1) for i in range(3)]
    pair.same_states(PROMPT, [AudioReference(), *images[:3], *videos, AudioReference(), *images[3:], AudioReference()])


def test_videos_with_timestamps_of_their_own(pair):
    times = [(0.0, 0.25, 0.5, 61.05), (3.0, 3.0, 1.0), (0.05, 0.15, 0.25, 0.35, 12345.678)]
    pair.same_states(PROMPT, [video(len(t), 32, 48, i, timestamps=t) for i, t in enumerate(times)])


SOUNDTRACK = video(14, 48, 32, 4, has_audio=True)
MIXED = {"image": image(64, 64, 1), "wide": image(20, 150, 2), "video": video(27, 32, 48, 3), "sound": AudioReference()}
MIXED["soundtrack"] = SOUNDTRACK


def test_every_order_of_five_references(layout):
    for order in permutations(MIXED.values()):
        layout.same_request(PROMPT, order)


@pytest.mark.parametrize("order", permutations(["image", "video", "soundtrack", "sound"]), ids="-".join)
def test_every_order_of_four_kinds(pair, order):
    pair.same_states(PROMPT, [MIXED[name] for name in order])


def test_26_samples_of_1344x768_shrink_in_real_pixels():
    frames = np.repeat(noise(2, 768, 1344, 3), 13, axis=0)
    patches = present("", [VideoReference(frames, timestamps=tuple(i / 2 for i in range(26)))]).video
    pixel_values, grid_thw = official_patches("video", [frames])
    equal(patches.grid_thw, grid_thw)
    equal(patches.pixel_values, pixel_values)
    assert patches.grid_thw.tolist() == [[13, 46, 80]]


def test_our_product_is_within_its_bound_on_all_kinds(pair):
    requests = [[image(*size)] for size in IMAGE_SIZES[::4]] + [[video(25, *size)] for size in VIDEO_SIZES[::4]]
    requests += [[MIXED[name] for name in order] for order in (["image", "soundtrack"], ["video", "sound", "wide"])]
    errors = [pair.product_error(PROMPT, r, pair.same_states(PROMPT, r)) for r in requests]
    assert max(errors) <= WHOLE_BOUND[pair.dtype]
