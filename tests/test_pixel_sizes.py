"""Sizes exactly on the released limits, and both processors at random sizes against torchvision's own resampling."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

from h3te.encoder.pixels import Patches, image_patches, image_size, video_patches, video_size
from h3te_tests.oracle import official_patches
from h3te_tests.oracle_pair import equal
from transformers.models.qwen2_vl import image_processing_qwen2_vl as qwen2_vl
from transformers.models.qwen3_vl import video_processing_qwen3_vl as qwen3_vl

IMAGE_LIMITS = {"min_pixels": 65_536, "max_pixels": 16_777_216}
VIDEO_LIMITS = {"min_pixels": 4_096, "max_pixels": 25_165_824}


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


ON_IMAGE_LIMITS = [
    ((256, 256), (256, 256)),  # 65,536 pixels
    ((255, 256), (256, 256)),
    ((240, 256), (256, 256)),  # halves round to even: 7.5 becomes 8
    ((239, 256), (256, 288)),
    ((32, 2048), (32, 2048)),
    ((4096, 4096), (4096, 4096)),  # 16,777,216 pixels
    ((4096, 4111), (4096, 4096)),
    ((4096, 4113), (4064, 4096)),
    ((2048, 8192), (2048, 8192)),
    ((2048, 8224), (2016, 8192)),
    ((1, 200), (32, 3648)),  # the aspect limit
    ((4096, 21), (4096, 32)),
]


@pytest.mark.parametrize("size,expected", ON_IMAGE_LIMITS, ids=str)
def test_image_sizes_on_the_limits_equal_the_processors_rule(size, expected):
    assert image_size(*size) == qwen2_vl.smart_resize(*size, factor=32, **IMAGE_LIMITS) == expected


CANVAS = (768, 1344)
ON_VIDEO_LIMITS = [
    ((24, *CANVAS), CANVAS),
    ((25, *CANVAS), CANVAS),  # Python's round makes 25 frames 24
    ((26, *CANVAS), (736, 1280)),
    ((30, *CANVAS), (672, 1184)),
    ((24, 1024, 1024), (1024, 1024)),  # 25,165,824 pixels
    ((25, 1024, 1024), (1024, 1024)),
    ((27, 1024, 1024), (960, 960)),
    ((24, 1024, 1056), (992, 1024)),
    ((2, 32, 64), (32, 64)),  # 4,096 pixels
    ((2, 32, 32), (64, 64)),
    ((3, 32, 32), (32, 32)),  # counted as 4 frames
    ((34, *CANVAS), (640, 1120)),
    ((2, 1, 200), (32, 6400)),
]


@pytest.mark.parametrize("size,expected", ON_VIDEO_LIMITS, ids=str)
def test_video_sizes_on_the_limits_equal_the_processors_rule(size, expected):
    assert video_size(*size) == qwen3_vl.smart_resize(*size, temporal_factor=2, factor=32, **VIDEO_LIMITS) == expected


def same(patches: Patches, theirs: tuple[torch.Tensor, torch.Tensor]) -> None:
    equal(patches.grid_thw, theirs[1])
    equal(patches.pixel_values, theirs[0])


def random_sizes(seed: int, count: int, largest: int) -> list[tuple[int, int]]:
    """Within an aspect of 200."""
    source = random.Random(seed)
    return [(source.randint(1, largest), source.randint(1, largest)) for _ in range(count)]


def test_the_processors_resample_by_torchvision():
    backends = pytest.importorskip("transformers.image_processing_backends")
    for processor in (qwen2_vl.Qwen2VLImageProcessor, qwen3_vl.Qwen3VLVideoProcessor):
        assert issubclass(processor, backends.TorchvisionBackend)


def test_image_patches_equal_the_processors_at_200_random_sizes():
    for seed, size in enumerate(random_sizes(1, 200, 199)):
        image = noise(seed, *size, 3)
        same(image_patches(image), official_patches("image", [image]))


def test_video_patches_equal_the_processors_at_200_random_sizes():
    for seed, size in enumerate(random_sizes(2, 200, 99)):
        frames = noise(seed, 2 + seed % 5, *size, 3)
        same(video_patches(frames), official_patches("video", [frames]))


def test_several_images_and_videos_in_one_call_equal_them_one_by_one():
    images = [noise(seed, *size, 3) for seed, size in enumerate(random_sizes(3, 9, 199))]
    pixel_values, grid_thw = official_patches("image", images)
    alone = [image_patches(image) for image in images]
    equal(torch.cat([patches.pixel_values for patches in alone]), pixel_values)
    equal(torch.cat([patches.grid_thw for patches in alone]), grid_thw)
    videos = [noise(seed, 2 + seed, *size, 3) for seed, size in enumerate(random_sizes(4, 5, 99))]
    pixel_values, grid_thw = official_patches("video", videos)
    alone = [video_patches(frames) for frames in videos]
    equal(torch.cat([patches.pixel_values for patches in alone]), pixel_values)
    equal(torch.cat([patches.grid_thw for patches in alone]), grid_thw)
