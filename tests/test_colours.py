"""Colours as people type them."""

from __future__ import annotations

import pytest
from h3te.nodes.colours import rgb

TYPED = [
    ("white", (255, 255, 255)), ("grey", (128, 128, 128)), ("gray", (128, 128, 128)), ("Black", (0, 0, 0)),
    ("CornflowerBlue", (100, 149, 237)), ("#808080", (128, 128, 128)), ("#0A141e", (10, 20, 30)), ("#fff", (255,) * 3),
    ("rgb(0, 128, 0)", (0, 128, 0)), ("rgb(100%,0%,50%)", (255, 0, 128)), ("hsl(0, 100%, 50%)", (255, 0, 0)),
    ("  white\n", (255, 255, 255)), ("\t#010203 ", (1, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "colour"), TYPED, ids=[repr(text) for text, _ in TYPED])
def test_names_and_notations_of_css_are_read(text, colour):
    assert rgb(text, "pad_colour") == colour


@pytest.mark.parametrize("text", ["#01020380", "#01020300", "rgba(1, 2, 3, 0)", "rgba(1,2,3,255)"])
def test_alpha_of_a_colour_is_dropped(text):
    assert rgb(text, "pad_colour") == (1, 2, 3)


REFUSED = [
    "", "   ", "mist", "transparent", "#12", "#12345", "808080", "255, 255, 255", "rgb(1, 2)", "rgb(300, 0, 0)",
    "rgb(200%, 0%, 0%)", "rgb(-1, 0, 0)", "hsl(0, 300%, 50%)", "hsv(0, 200%, 50%)",
    "hsl(0, 100%, 200%)", None, 5, 0.5, (255, 255, 255), "w" * 200,
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=[repr(text)[:20] for text in REFUSED])
def test_anything_else_is_refused_by_its_input(text):
    with pytest.raises(ValueError) as error:
        rgb(text, "Keyframe (H3TE), pad_colour")
    told = f"Keyframe (H3TE), pad_colour: expected a colour such as white, grey or #1a2b3c, got {text!r:.60}. Type a"
    assert str(error.value).startswith(told)
