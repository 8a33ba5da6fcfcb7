"""Reference Image (H3TE): one more picture on a chain of references."""

from __future__ import annotations

import math
from typing import Any

from comfy_api.latest import io

from .chains import REFERENCES, ImageItem, checked_chain
from .host.reference_limits import check_aspect
from .sockets import References, chain_input, schema, vision_only_input

NODE = "Reference Image (H3TE)"


class ReferenceImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="H3TEReferenceImage",
            display_name=NODE,
            description="Adds a picture to a chain of references, whose order is the order of the request.",
            search_aliases=["minimax reference", "timed reference"],
            inputs=[
                io.Image.Input("image", tooltip="Every picture of a batch is a reference of its own."),
                vision_only_input(),
                io.Boolean.Input("timed", default=False, tooltip="On: the picture is labelled with its second."),
                io.Float.Input(
                    "second",
                    default=0.0,
                    min=0.0,
                    max=3600.0,
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
        check_aspect(image, where)  # here, so that ComfyUI marks this node and not the encode node
        timestamp = _checked_second(second, where) if timed else None
        return io.NodeOutput((*before, ImageItem(image, vision_only, where, timestamp)))


def _checked_second(second: Any, where: str) -> float:
    if not (isinstance(second, (int, float)) and 0 <= second < math.inf):
        raise ValueError(f"{where}: expected a second from 0 on, got {second}. Correct it, or turn timed off.")
    return float(second)
