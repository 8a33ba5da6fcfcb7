"""What a reader may say of an input: nothing, or one clear error of ours.

Contract: `refusal(call)` runs it; None where it went well, else the text. Anything but the named errors comes through,
and so does an AssertionError for a message that is too long, unprintable or without advice.
"""

from __future__ import annotations

from collections.abc import Callable

LONGEST_MESSAGE = 1500


def refusal(call: Callable[[], object], errors: tuple[type[Exception], ...] = (ValueError,)) -> str | None:
    try:
        call()
    except errors as error:
        text = str(error)
    else:
        return None
    if not (text.isprintable() and len(text) <= LONGEST_MESSAGE and "expected" in text and "got" in text):
        raise AssertionError(f"expected a message of ours, got {text!r:.2000}")
    return text
