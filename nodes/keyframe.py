"""Keyframe (H3TE): one more keyframe on a chain, at any frame or second of the video."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import FITS, KEYFRAMES, KeyframeItem, checked_chain
from .colours import rgb
from .host.images import size_of
from .sockets import Keyframes, Schema, chain_input, checked_choice, checked_switch, is_finite

NODE = "Keyframe (H3TE)"
UNITS = ("frame", "second")


class KeyframeNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEKeyframe",
            display_name=NODE,
            description="Pins a picture at a frame or second of the video. Chain several, into keyframes of "
            "Encode Video Keyframes (H3TE).",
            search_aliases=["minimax keyframe", "guide", "mid frame", "关键帧", "中间帧"],
            inputs=[
                io.Image.Input("image", tooltip="One picture."),
                io.Combo.Input("unit", options=list(UNITS), default=UNITS[0], tooltip="Which of the two is read."),
                io.Int.Input(
                    "frame",
                    default=0,
                    min=-9999,
                    max=9999,
                    tooltip="Frame at 24 fps: 0 is the first one, -1 the last, -2 the one before it.",
                ),
                io.Float.Input(
                    "second",
                    default=0.0,
                    min=-400.0,
                    max=400.0,
                    step=0.01,
                    tooltip="Seconds from the start, to the nearest frame; below zero from the end.",
                ),
                io.Combo.Input("fit", options=list(FITS), default=FITS[0], tooltip=FIT_TIP),
                io.String.Input("pad_colour", default="black", tooltip="Around the picture with fit pad."),
                io.Boolean.Input(
                    "show_to_encoder",
                    default=True,
                    tooltip="On: the text encoder sees it too, as the next <Picture n>. Off: it only pins the frame.",
                ),
                chain_input(Keyframes, "keyframes", "Keyframes before this one."),
            ],
            outputs=[Keyframes.Output(display_name="keyframes", tooltip="The chain with this keyframe at its end.")],
        )

    @classmethod
    def execute(
        cls,
        image: Any,
        unit: str,
        frame: int,
        second: float,
        fit: str,
        pad_colour: str,
        show_to_encoder: bool,
        keyframes: Any = None,
    ) -> io.NodeOutput:
        before = checked_chain(keyframes, KEYFRAMES, NODE, "keyframes")
        where = f"{NODE} {len(before) + 1} of the chain"
        checked_choice(unit, UNITS, f"{where}, unit")
        checked_choice(fit, FITS, f"{where}, fit")
        show = checked_switch(show_to_encoder, f"{where}, show_to_encoder")
        place = {"second": _second(second, where)} if unit == "second" else {"frame": _frame(frame, where)}
        size_of(image, f"{where}, image")  # one picture, refused here and not first at the encode node
        colour = rgb(pad_colour, f"{where}, pad_colour")
        item = KeyframeItem(image, fit=fit, show=show, where=where, pad_colour=colour, **place)
        return io.NodeOutput((*before, item))


def _frame(value: Any, where: str) -> int:
    if not is_finite(value) or value != int(value):
        raise ValueError(
            f"{where}, frame: expected a whole number, got {value!r:.60}. Connect an INT, or choose unit second."
        )
    return int(value)


def _second(value: Any, where: str) -> float:
    if not is_finite(value):
        raise ValueError(
            f"{where}, second: expected a number of seconds, got {value!r:.60}. Connect a FLOAT, or choose unit frame."
        )
    return float(value)


FIT_TIP = (
    "released: stretch for the first keyframe of all, shown or not, crop for later ones. crop: scaled to cover, then "
    "cut around the centre. pad: scaled to fit inside, on pad_colour."
)
