"""What the pictures of the help pages show: for each node, a small graph around it.

Contract: `SCENES` by node id. A scene's nodes are placed in the canvas' units; a link is (from, output, to, input).
`run`: the graph is queued before its picture is taken. Files are those of assets/demo, the demo checkpoint, and
UNFINISHED, a file that breaks off. Scenes are narrow, as the panel that shows them is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import given_checkpoint

DEMO = given_checkpoint.DEMO_NAME + "/"
UNFINISHED = "qwen3vl_32b_minimax_h3_unfinished.safetensors"
DUCK, LIGHTHOUSE, DAWN, DAY = "rubber_duck.jpg", "lighthouse.jpg", "harbour_dawn.jpg", "harbour_day.jpg"
RIDE = "The duck of <Picture 1> floats past the lighthouse of <Picture 2>, waves breaking softly."
DAYBREAK = "The harbour of <Picture 1> wakes up; the light changes until it is as in <Picture 2>."


@dataclass(frozen=True)
class Placed:
    """A node: its type, left, top, width, height, values of widgets, and whether it shows its title alone."""

    kind: str
    box: tuple[int, int, int, int]
    values: dict[str, Any] = field(default_factory=dict)
    collapsed: bool = False


@dataclass(frozen=True)
class Scene:
    nodes: dict[str, Placed]
    links: tuple[tuple[str, int, str, str], ...] = ()
    run: bool = False


def _picture(name: str, left: int = 0, width: int = 200, collapsed: bool = False) -> Placed:
    return Placed("LoadImage", (left, 0, width, 310), {"image": name}, collapsed)


def _encode(kind: str, top: int, prompt: str = "", collapsed: bool = True) -> Placed:
    return Placed(kind, (0, top, 420, 480), {"prompt": prompt}, collapsed)


REFERENCES, KEYFRAMES = "H3TEEncodeReferences", "H3TEEncodeKeyframes"
SAVED = "conditioning/h3_00001_.safetensors [output]"
SCENES: dict[str, Scene] = {
    "H3TELoadTextEncoder": Scene(
        {
            "loader": Placed("H3TELoadTextEncoder", (0, 0, 420, 90), {"text_encoder": DEMO}),
            "encode": _encode(KEYFRAMES, 150, "A paper boat drifts down a rainy street.", collapsed=False),
        },
        (("loader", 0, "encode", "clip"),),
    ),
    REFERENCES: Scene(
        {
            "duck": _picture(DUCK),
            "tower": _picture(LIGHTHOUSE, left=220),
            "encode": _encode(REFERENCES, 370, RIDE, collapsed=False),
        },
        (("duck", 0, "encode", "ref_images.ref_image_0"), ("tower", 0, "encode", "ref_images.ref_image_1")),
    ),
    KEYFRAMES: Scene(
        {
            "dawn": _picture(DAWN),
            "day": _picture(DAY, left=220),
            "encode": _encode(KEYFRAMES, 370, DAYBREAK, collapsed=False),
        },
        (("dawn", 0, "encode", "first_frame"), ("day", 0, "encode", "last_frame")),
    ),
    "H3TEReferenceImage": Scene(
        {
            "duck": _picture(DUCK),
            "tower": _picture(LIGHTHOUSE, left=240),
            "first": Placed("H3TEReferenceImage", (0, 370, 210, 130)),
            "second": Placed("H3TEReferenceImage", (240, 370, 210, 130), {"timed": True, "second": 2.0}),
            "encode": Placed(REFERENCES, (120, 560, 300, 480), {}, collapsed=True),
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
            "file": Placed("LoadVideo", (0, 0, 320, 260), {"file": "toy_train.mp4"}),
            "video": Placed("H3TEReferenceVideo", (0, 320, 320, 180)),
            "encode": _encode(REFERENCES, 560),
        },
        (("file", 0, "video", "video"), ("video", 0, "encode", "references")),
    ),
    "H3TEReferenceAudio": Scene(
        {
            "file": Placed("LoadAudio", (0, 0, 320, 140)),
            "sound": Placed("H3TEReferenceAudio", (0, 200, 320, 90)),
            "encode": _encode(REFERENCES, 350),
        },
        (("file", 0, "sound", "audio"), ("sound", 0, "encode", "references")),
    ),
    "H3TEKeyframe": Scene(
        {
            "day": _picture(DAY, width=320),
            "middle": Placed("H3TEKeyframe", (0, 370, 320, 210), {"unit": "second", "second": 2.5}),
            "encode": _encode(KEYFRAMES, 640),
        },
        (("day", 0, "middle", "image"), ("middle", 0, "encode", "keyframes")),
    ),
    "H3TEShowPresentation": Scene(
        {
            "duck": _picture(DUCK, collapsed=True),
            "tower": _picture(LIGHTHOUSE, left=240, collapsed=True),
            "show": Placed("H3TEShowPresentation", (0, 70, 480, 1180), {"prompt": RIDE}),
        },
        (("duck", 0, "show", "ref_images.ref_image_0"), ("tower", 0, "show", "ref_images.ref_image_1")),
        run=True,
    ),
    "H3TESaveConditioning": Scene(
        {
            "encode": _encode(REFERENCES, 0),
            "save": Placed("H3TESaveConditioning", (0, 60, 340, 90)),
            "guider": Placed("BasicGuider", (0, 210, 240, 50)),
        },
        (("encode", 0, "save", "conditioning"), ("save", 0, "guider", "conditioning")),
    ),
    "H3TELoadConditioning": Scene(
        {
            "load": Placed("H3TELoadConditioning", (0, 0, 340, 90), {"file": SAVED}),
            "guider": Placed("BasicGuider", (0, 150, 240, 50)),
        },
        (("load", 0, "guider", "conditioning"),),
    ),
    "H3TEClearCaches": Scene(
        {
            "save": Placed("H3TESaveConditioning", (0, 0, 340, 90)),
            "clear": Placed("H3TEClearCaches", (0, 150, 340, 90)),
        },
        (("save", 1, "clear", "anything"),),
    ),
    "H3TECheckpointDoctor": Scene(
        {
            "doctor": Placed("H3TECheckpointDoctor", (0, 0, 440, 160), {"text_encoder": UNFINISHED}),
            "table": Placed("PreviewImage", (0, 210, 440, 200)),
        },
        (("doctor", 1, "table", "images"),),
        run=True,
    ),
    "H3TEEncoderOptions": Scene(
        {
            "options": Placed("H3TEEncoderOptions", (0, 0, 340, 340)),
            "loader": Placed("H3TELoadTextEncoder", (0, 400, 340, 90), {"text_encoder": DEMO}),
        },
        (("options", 0, "loader", "options"),),
    ),
}
