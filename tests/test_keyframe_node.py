"""Keyframe: one more keyframe on a chain, refused at its own door where it cannot be used."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from h3te_tests.comfy_host import comfy, picture  # noqa: F401 (fixture)

WHERE = r"Keyframe \(H3TE\) {} of the chain"


@pytest.fixture
def add(comfy):  # noqa: F811
    from h3te.nodes.keyframe import KeyframeNode

    def run(image=None, **inputs):
        widgets = {"unit": "frame", "frame": 0, "second": 0.0, "fit": "released", "pad_colour": "black",
                   "show_to_encoder": True}  # fmt: skip
        (chain,) = KeyframeNode.execute(picture(1) if image is None else image, **{**widgets, **inputs}).args
        return chain

    return run


def test_chain_grows_at_its_end_and_branches_are_apart(add):
    one = add(frame=3)
    left, right = add(frame=5, keyframes=one), add(frame=7, keyframes=one)
    assert [[item.frame for item in chain] for chain in (one, left, right)] == [[3], [3, 5], [3, 7]]
    assert [item.where for item in left] == [f"Keyframe (H3TE) {i} of the chain" for i in (1, 2)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        one[0].frame = 4


@pytest.mark.parametrize(("unit", "second"), [("frame", None), ("second", 1.5)])
def test_second_is_read_in_its_unit_alone(add, unit, second):
    (item,) = add(unit=unit, frame=8, second=1.5)
    assert item.second == second


@pytest.mark.parametrize(("given", "frame"), [(3.0, 3), (-2.0, -2), (np.int64(4), 4), (np.float32(5.0), 5)])
def test_whole_number_of_any_kind_is_a_frame(add, given, frame):
    """A link that takes any type passes by ComfyUI's own checks."""
    (item,) = add(frame=given)
    assert item.frame == frame
    assert type(item.frame) is int


def test_what_is_not_read_in_its_unit_may_be_anything(add):
    assert add(unit="second", second=2, frame=None)[0].second == 2.0
    assert add(unit="frame", second=None, frame=7)[0].frame == 7


def test_widgets_travel_on_the_item(add):
    image = picture(3)
    (item,) = add(image, frame=-4, fit="pad", pad_colour=" #0a141e", show_to_encoder=False)
    assert item.pixels is image
    assert (item.frame, item.fit, item.pad_colour, item.show) == (-4, "pad", (10, 20, 30), False)


def test_defaults_of_the_node_are_the_released_fit_at_the_first_frame(comfy):  # noqa: F811
    from h3te.nodes.keyframe import KeyframeNode

    widgets = {socket.id: getattr(socket, "default", None) for socket in KeyframeNode.GET_SCHEMA().inputs}
    assert widgets == {"image": None, "unit": "frame", "frame": 0, "second": 0.0, "fit": "released",
                       "pad_colour": "black", "show_to_encoder": True, "keyframes": None}  # fmt: skip


FRAMES_OF_NO_USE = [
    (2.7, r"2\.7"), ("3", "'3'"), (None, "None"), (True, "True"), (math.nan, "nan"), (math.inf, "inf"),
]  # fmt: skip
SECONDS_OF_NO_USE = [
    (None, "None"),
    ("1", "'1'"),
    (False, "False"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
    (10**400, "10+"),
]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"unit": "minute"}, ", unit: expected frame or second, got 'minute'. Choose one."),
        ({"fit": "zoom"}, ", fit: expected released or stretch or crop or pad, got 'zoom'. Choose one."),
        ({"pad_colour": "mist"}, ", pad_colour: expected a colour such as .* got 'mist'"),
        ({"image": picture(1, batch=2)}, ", image: expected one picture, got a batch of 2"),
        *(
            ({"frame": frame}, f", frame: expected a whole number, got {told}. Connect an INT")
            for frame, told in FRAMES_OF_NO_USE
        ),
        *(
            (
                {"unit": "second", "second": second},
                f", second: expected a number of seconds, got {told}. Connect a FLOAT",
            )
            for second, told in SECONDS_OF_NO_USE
        ),
        *(
            ({"show_to_encoder": value}, f", show_to_encoder: expected True or False, got {value!r}. Connect a BOOLEAN")
            for value in ("false", None, 1, 0.0)
        ),
        ({"image": torch.zeros(1, 4, 4)}, r", image: expected an IMAGE .* got shape \[1, 4, 4\]. For a mask"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_place_in_the_chain(add, inputs, told):
    for chain, number in ((None, 1), (add(), 2)):
        with pytest.raises(ValueError, match=WHERE.format(number) + told):
            add(keyframes=chain, **inputs)


def test_chain_of_something_else_is_refused(add, comfy):  # noqa: F811
    from h3te.nodes.chains import ImageItem

    others = (((ImageItem(picture(1)),), "a chain of references"), ("chain", "str"), ((1, "a"), "a tuple of int, str"))
    for chain, got in others:
        told = rf"expected keyframes to be a chain of keyframes, got {got}\. Connect Keyframe \(H3TE\)\."
        with pytest.raises(ValueError, match=told):
            add(keyframes=chain)
