"""MiniMax H3 Checkpoint Doctor (H3TE): what a file or folder is, told from its headers, as text and as a table."""

from __future__ import annotations

import numpy as np
import torch
from comfy_api.latest import io

from ..encoder.checkpoint import picture, summary
from .host import paths, report
from .host.images import to_image
from .sockets import Schema

WHO = "MiniMax H3 Checkpoint Doctor (H3TE)"


class CheckpointDoctor(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TECheckpointDoctor",
            display_name=WHO,
            description="Says what a text encoder file is, what is wrong with it and what to do. Reads headers alone.",
            search_aliases=["inspect", "checkpoint", "qwen3vl", "minimax", "诊断", "检查模型"],
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "text_encoder",
                    options=paths.combo_values(),
                    tooltip="A file or released folder in models/text_encoders; broken and other models' files too.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="report", tooltip="The report as text, one fact a line."),
                io.Image.Output(
                    display_name="table", tooltip="The report as a picture: problems in red, then what to do."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, text_encoder: str | None = None) -> bool | str:
        """A broken file is what this node is for: only a name that is nowhere is refused."""
        try:
            return text_encoder is None or bool(find(text_encoder))
        except ValueError as error:
            return str(error)

    @classmethod
    def fingerprint_inputs(cls, text_encoder: str | None = None, **_) -> object:
        """Changes when the file or folder does."""
        try:
            return paths.file_state(find(text_encoder)) if text_encoder else ()
        except ValueError as error:
            return str(error)

    @classmethod
    def execute(cls, text_encoder: str) -> io.NodeOutput:
        found = paths.cached_report(find(text_encoder))
        text = summary.text(found)
        path, *facts = text.splitlines()  # a node shows two lines: the verdict before the path
        lines = [*(fact.strip() for fact in facts), path]
        shown = report.show(cls.hidden.unique_id if cls.hidden else None, lines)
        table = to_image(torch.from_numpy(np.array(picture.draw(found))))
        return io.NodeOutput(text, table[None], ui=shown)


def find(text_encoder: str):
    """The path that a saved value means. Raises ValueError in this node's name."""
    try:
        return paths.resolve(text_encoder)
    except ValueError as error:
        raise ValueError(str(error).replace(paths.WHO, WHO, 1)) from error
