"""What the pictures of the help pages show: for each node, a small graph around it.

Contract: `SCENES` by node id. A scene's nodes are placed in the canvas' units; a link is (from, output, to, input).
`run`: the graph is queued before its picture is taken. Files are those of assets/demo and the demo checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import given_checkpoint

DEMO = given_checkpoint.DEMO_NAME + "/"
DUCK, LIGHTHOUSE, DAWN, DAY = "rubber_duck.jpg", "lighthouse.jpg", "harbour_dawn.jpg", "harbour_day.jpg"
RIDE = "The duck of <Picture 1> floats past the lighthouse of <Picture 2>, waves breaking softly."
DAYBREAK = "The harbour of <Picture 1> wakes up; the light changes until it is as in <Picture 2>."


@dataclass(frozen=True)
class Placed:
    """A node: its type, left, top, width, height, and values of widgets."""

    kind: str
    box: tuple[int, int, int, int]
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scene:
    nodes: dict[str, Placed]
    links: tuple[tuple[str, int, str, str], ...] = ()
    run: bool = False


def _picture(top: int, name: str, left: int = 0, height: int = 190) -> Placed:
    return Placed("LoadImage", (left, top, 220, height), {"image": name})


def _references(left: int, prompt: str, height: int = 560) -> Placed:
    return Placed("H3TEEncodeReferences", (left, 0, 400, height), {"prompt": prompt})


def _keyframes(left: int, prompt: str) -> Placed:
    return Placed("H3TEEncodeKeyframes", (left, 0, 400, 520), {"prompt": prompt})


LOADER = Placed("H3TELoadTextEncoder", (0, 0, 330, 110), {"text_encoder": DEMO})
SCENES: dict[str, Scene] = {
    "H3TELoadTextEncoder": Scene(
        {"loader": LOADER, "encode": _keyframes(400, "A paper boat drifts down a rainy street.")},
        (("loader", 0, "encode", "clip"),),
    ),
    "H3TEEncodeReferences": Scene(
        {"duck": _picture(0, DUCK), "tower": _picture(260, LIGHTHOUSE), "encode": _references(300, RIDE)},
        (("duck", 0, "encode", "ref_images.ref_image_0"), ("tower", 0, "encode", "ref_images.ref_image_1")),
    ),
    "H3TEEncodeKeyframes": Scene(
        {"dawn": _picture(0, DAWN), "day": _picture(260, DAY), "encode": _keyframes(300, DAYBREAK)},
        (("dawn", 0, "encode", "first_frame"), ("day", 0, "encode", "last_frame")),
    ),
    "H3TEReferenceImage": Scene(
        {
            "duck": _picture(0, DUCK),
            "first": Placed("H3TEReferenceImage", (0, 250, 240, 150)),
            "tower": _picture(0, LIGHTHOUSE, left=280),
            "second": Placed("H3TEReferenceImage", (280, 250, 240, 150), {"timed": True, "second": 2.0}),
            "encode": _references(580, RIDE),
        },
        (
            ("duck", 0, "first", "image"),
            ("tower", 0, "second", "image"),
            ("first", 0, "second", "references"),
            ("second", 0, "encode", "references"),
        ),
    ),
    "H3TEReferenceVideo": Scene(
        {
            "file": Placed("LoadVideo", (0, 0, 260, 120), {"file": "toy_train.mp4"}),
            "video": Placed("H3TEReferenceVideo", (0, 190, 260, 200)),
            "encode": _references(330, "A wooden train rides through a garden; it moves as in <Video 1>."),
        },
        (("file", 0, "video", "video"), ("video", 0, "encode", "references")),
    ),
    "H3TEReferenceAudio": Scene(
        {
            "file": Placed("LoadAudio", (0, 0, 260, 130)),
            "sound": Placed("H3TEReferenceAudio", (0, 200, 260, 110)),
            "encode": _references(330, "The duck of <Picture 1> speaks with the voice of <Audio 1>."),
        },
        (("file", 0, "sound", "audio"), ("sound", 0, "encode", "references")),
    ),
    "H3TEKeyframe": Scene(
        {
            "day": _picture(0, DAY),
            "middle": Placed("H3TEKeyframe", (0, 250, 260, 230), {"unit": "second", "second": 2.5}),
            "encode": _keyframes(330, "Dawn over the harbour; halfway it looks as in <Picture 1>."),
        },
        (("day", 0, "middle", "image"), ("middle", 0, "encode", "keyframes")),
    ),
    "H3TEShowPresentation": Scene(
        {
            "duck": _picture(0, DUCK),
            "tower": _picture(260, LIGHTHOUSE),
            "show": Placed("H3TEShowPresentation", (300, 0, 480, 1050), {"prompt": RIDE}),
        },
        (("duck", 0, "show", "ref_images.ref_image_0"), ("tower", 0, "show", "ref_images.ref_image_1")),
        run=True,
    ),
    "H3TESaveConditioning": Scene(
        {
            "encode": _references(0, RIDE),
            "save": Placed("H3TESaveConditioning", (460, 0, 290, 110)),
            "guider": Placed("BasicGuider", (460, 190, 200, 50)),
        },
        (("encode", 0, "save", "conditioning"), ("save", 0, "guider", "conditioning")),
    ),
    "H3TELoadConditioning": Scene(
        {
            "load": Placed("H3TELoadConditioning", (0, 0, 340, 110)),
            "guider": Placed("BasicGuider", (410, 0, 200, 50)),
        },
        (("load", 0, "guider", "conditioning"),),
    ),
    "H3TEClearCaches": Scene(
        {
            "save": Placed("H3TESaveConditioning", (0, 0, 290, 110)),
            "clear": Placed("H3TEClearCaches", (350, 0, 300, 110)),
        },
        (("save", 1, "clear", "anything"),),
    ),
    "H3TECheckpointDoctor": Scene(
        {
            "doctor": Placed("H3TECheckpointDoctor", (0, 0, 320, 420), {"text_encoder": DEMO}),
            "table": Placed("PreviewImage", (390, 0, 520, 420)),
        },
        (("doctor", 1, "table", "images"),),
        run=True,
    ),
    "H3TEEncoderOptions": Scene(
        {
            "options": Placed("H3TEEncoderOptions", (0, 0, 330, 350)),
            "loader": Placed("H3TELoadTextEncoder", (400, 0, 330, 110), {"text_encoder": DEMO}),
        },
        (("options", 0, "loader", "options"),),
    ),
}
