"""Width, height and length as links bring them: numbers of the widget's range, or an error that names the input."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from h3te.nodes.host.keyframes import canvas_target
from h3te.nodes.host.references import Target, resolve_target

GOOD = {"width": 256, "height": 192, "length": 22}
WRONG = ["256", None, True, math.nan, math.inf, -math.inf, -5, 0, 10**7, torch.tensor(256), [256], 1 + 2j]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_what_is_no_number_of_the_range_is_refused_by_name(name, value):
    unit, least, most = ("frames", 5, 3600) if name == "length" else ("pixels", 32, 16384)
    with pytest.raises(
        ValueError, match=rf"^{name}: expected a number of {unit} from {least} to {most}, got "
    ) as raised:
        resolve_target(**{**GOOD, name: value})
    assert str(raised.value).endswith("Correct it, or unlink the input.")


@pytest.mark.parametrize(
    ("value", "said"), [("256", "str"), (None, "None"), (math.nan, "nan"), (True, "True"), (-5, "-5"), ([1], "list")]
)
def test_error_says_what_came(value, said):
    with pytest.raises(ValueError, match=rf"16384, got {said}\. Correct it"):
        resolve_target(value, 192, 22)


@pytest.mark.parametrize(("name", "value"), [("width", 31), ("height", 16385), ("length", 4), ("length", 3601)])
def test_what_the_widget_would_not_take_is_not_taken_over_a_link(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected a number"):
        resolve_target(**{**GOOD, name: value})


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((32, 16384, 5), Target(32, 16384, 5)),
        ((47, 49, 3600), Target(32, 64, 3609)),
        ((255.6, Fraction(385, 2), 22.5), Target(256, 192, 39)),
        ((np.int64(256), np.float32(192), np.int32(22)), Target(256, 192, 22)),
    ],
)
def test_numbers_of_the_range_are_put_on_the_grid(size, expected):
    target = resolve_target(*size)
    assert target == expected
    assert {type(side) for side in (target.width, target.height, target.frames)} == {int}


def test_keyframes_refuse_alike():
    with pytest.raises(ValueError, match=r"^height: expected a number of pixels"):
        canvas_target("given", [], 256, math.nan, 22)
