"""Reference Image (H3TE): one more picture on a chain of references."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import REFERENCES, ImageItem, checked_chain
from .host.reference_limits import check_aspect
from .sockets import References, Schema, chain_input, checked_switch, is_finite, vision_only_input

NODE = "Reference Image (H3TE)"
LAST_SECOND = 3600


class ReferenceImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEReferenceImage",
            display_name=NODE,
            description="Adds a picture to a chain of references, whose order is the order of the request.",
            search_aliases=["minimax reference", "timed reference", "ref2va", "参考图像", "参考图"],
            inputs=[
                io.Image.Input("image", tooltip="Every picture of a batch is a reference of its own."),
                vision_only_input(),
                io.Boolean.Input("timed", default=False, tooltip="On: the picture is labelled with its second."),
                io.Float.Input(
                    "second",
                    default=0.0,
                    min=0.0,
                    max=float(LAST_SECOND),
                    step=0.1,
                    tooltip="Of a timed picture, as <2.0 seconds> before it. An extension: not in the released form.",
                ),
                chain_input(References, "references", "References before this one."),
            ],
            outputs=[References.Output(display_name="references", tooltip="The chain with this picture at its end.")],
        )

    @classmethod
    def execute(
        cls, image: Any, vision_only: bool, timed: bool, second: float, references: Any = None
    ) -> io.NodeOutput:
        before = checked_chain(references, REFERENCES, NODE, "references")
        where = f"{NODE} {len(before) + 1} of the chain"
        vision_only = checked_switch(vision_only, f"{where}, vision_only")
        timed = checked_switch(timed, f"{where}, timed")
        check_aspect(image, where)  # here, so that ComfyUI marks this node and not the encode node
        timestamp = _checked_second(second, where) if timed else None
        return io.NodeOutput((*before, ImageItem(image, vision_only, where, timestamp)))


def _checked_second(second: Any, where: str) -> float:
    if not (is_finite(second) and 0 <= second <= LAST_SECOND):
        raise ValueError(
            f"{where}: expected a second from 0 to {LAST_SECOND}, got {second!r:.60}. Correct it, or turn timed off."
        )
    return float(second) + 0.0  # -0.0 is 0.0
