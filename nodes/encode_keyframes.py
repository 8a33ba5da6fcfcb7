"""Encode Video Keyframes (H3TE): prompt and keyframes -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ImageToVideo: its inputs in its order and names, then ours. Lists of prompts are
encoded in one pass.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .encode_list import encode_list
from .encode_sockets import (
    canvas_input,
    clip_input,
    fit_input,
    keyframe_inputs,
    picture_output,
    presentation_output,
    preview_input,
)
from .host.keyframes import keyframe_blocks
from .requests import Request, Row, keyframe_request
from .sockets import Schema, alpha_input, prompt_input, size_inputs

NODE = "Encode Video Keyframes (H3TE)"


class EncodeKeyframes(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEEncodeKeyframes",
            display_name="Encode Video Keyframes (H3TE)",
            description="Prompt with a first frame, a last frame, both or neither. They are <Picture 1>, <Picture 2>.",
            search_aliases=["minimax image to video", "fl2va", "t2va", "首尾帧", "图生视频", "提示词"],
            is_input_list=True,
            inputs=_inputs(),
            outputs=_outputs(),
        )

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        """Takes and gives ComfyUI's lists, one value a prompt."""
        done = encode_list(inputs, NODE, cls.hidden, _request, _latents)
        targets = done.targets
        size = ([t.width for t in targets], [t.height for t in targets], [t.frames for t in targets])
        return io.NodeOutput(done.positive, done.latents, done.presentations, *size, done.pictures, ui=done.ui)


def _request(row: Row, preview: bool) -> Request:
    return keyframe_request(row, NODE, row.get("vae"), preview)


def _latents(row: Row, request: Request) -> dict[str, Any]:
    blocks = keyframe_blocks(request.prepared, row.get("vae"))
    return {"minimax_keyframes": blocks} if blocks else {}


def _inputs() -> list[io.Input]:
    return [
        clip_input(),
        io.Vae.Input("vae", optional=True, tooltip="Video VAE. Without it keyframes will not pin frames."),
        prompt_input(),
        *size_inputs(),
        *keyframe_inputs(),
        fit_input(),
        alpha_input(),
        canvas_input(),
        preview_input(),
    ]


def _outputs() -> list[io.Output]:
    return [
        io.Conditioning.Output(display_name="positive", tooltip="For the guider of the H3 model.", is_output_list=True),
        io.Latent.Output(tooltip="Empty video and audio latent of this size and length.", is_output_list=True),
        presentation_output(),
        io.Int.Output(
            "resolved_width", display_name="width", tooltip="Width used, a multiple of 32.", is_output_list=True
        ),
        io.Int.Output(
            "resolved_height", display_name="height", tooltip="Height used, a multiple of 32.", is_output_list=True
        ),
        io.Int.Output("resolved_length", display_name="length", tooltip="Frames used, 17k + 5.", is_output_list=True),
        picture_output(),
    ]
