"""A layout from sizes alone is the presentation to the character and to the grid, and costs no pixels."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.presentation import present, present_each
from h3te.encoder.presentation_layout import lay_out, lay_out_each


def blank(*shape: int) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8).expand(*shape, 3)


def some_reference(choose: random.Random):
    height, width = choose.randint(1, 300), choose.randint(40, 300)
    kind = choose.choice(["image", "timed", "video", "sampled", "sound"])
    if kind == "sound":
        return AudioReference()
    if kind in ("image", "timed"):
        return ImageReference(blank(height, width), choose.uniform(0, 90) if kind == "timed" else None)
    frames, sound = choose.randint(13, 70), choose.random() < 0.5
    if kind == "video":
        return VideoReference(blank(frames, height, width), choose.choice([12, 23.976, 24]), sound)
    count = choose.randint(1, 9)
    return VideoReference(blank(count, height, width), 24, sound, tuple(i / 2 for i in range(count)))


@pytest.mark.parametrize("seed", range(12))
def test_layout_equals_the_presentation(seed):
    choose = random.Random(seed)
    references = [some_reference(choose) for _ in range(choose.randint(0, 6))]
    ours, real = lay_out("a fox", references), present("a fox", references)
    assert ours.segments == real.segments
    assert ours.parts == real.parts
    assert ours.image is ours.video is None


def test_layouts_of_several_prompts_equal_their_presentations():
    prompts, references = ["", "a fox", "an owl"], [ImageReference(blank(50, 70)), AudioReference()]
    ours, real = lay_out_each(prompts, references), present_each(prompts, references)
    assert [each.segments for each in ours] == [each.segments for each in real]


@pytest.mark.parametrize(
    ("prompt", "references"),
    [
        (1, ()),
        ("", 3),
        ("", ["a picture"]),
        ("", [ImageReference(blank(3, 900))]),
        ("", [ImageReference(torch.zeros(4, 4, 4))]),
        ("", [ImageReference(np.zeros((4, 4), np.uint8))]),
        ("", [ImageReference(blank(4, 4), timestamp=-1)]),
        ("", [VideoReference(blank(5, 64, 64))]),
        ("", [VideoReference(blank(5, 64, 64), timestamps=(0, 1))]),
        ("", [VideoReference(blank(2, 64, 64), timestamps=(0, float("nan")))]),
    ],
)
def test_layout_refuses_what_the_presentation_refuses(prompt, references):
    with pytest.raises(ValueError) as ours:
        lay_out(prompt, references)
    with pytest.raises(ValueError) as real:
        present(prompt, references)
    assert str(ours.value) == str(real.value)


def test_pixels_are_not_read():
    """Of memory there is one byte, and of values nothing is asked."""
    huge = ImageReference(torch.full((1,), float("nan")).expand(4000, 4000, 3))
    assert lay_out("", [huge] * 9).parts[8].grid_thw == (1, 250, 250)
