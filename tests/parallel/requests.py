"""The requests of the tests over ranks: every modality, by name, small."""

from __future__ import annotations

from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te_tests.golden_cases import clip, pattern


def _picture(seed: int, timestamp: float | None = None) -> ImageReference:
    return ImageReference(pattern(256, 256 + 32 * (seed % 2), seed), timestamp)


def _video(seed: int, **options) -> VideoReference:
    return VideoReference(clip(30, 64, 96, seed), **options)


REQUESTS = {
    "text": (" ".join(f"A red fox runs through fresh snow at dawn, 雪の中の狐, take {n}." for n in range(8)), []),
    "pictures": ("<Picture 1> beside <Picture 2>", [_picture(1), _picture(2)]),
    "video": ("<Video 1> again, with its sound", [_video(3, has_audio=True)]),
    "both": ("<Picture 1>, then <Video 1>, to <Audio 1>", [_picture(4), _video(5), AudioReference()]),
    "timed": (
        "what happens between the two",
        [
            _picture(6, 1.5),
            VideoReference(clip(2, 64, 64, 7), timestamps=(0.0, 0.5)),
            _picture(7, 3.0),
        ],
    ),
}
PROMPTS = ["a fox", "a fox in the snow", "a much longer prompt about an owl that sleeps", ""]
EDITED = [  # each is what a user makes of the one before it
    ("a fox in the snow", [_picture(1)]),
    ("a fox in the snow at night", [_picture(1)]),
    ("a fox in the snow at night", [_picture(1), _picture(2)]),
    ("an owl in the snow at night", [_picture(1), _picture(2)]),
    ("an owl in the snow at night", [_video(3), _picture(2)]),
    ("a fox in the snow at night", [_picture(1)]),
]
