"""Encode Prompt + Reference Image (H3TE): prompt and references -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ReferenceToVideo: its inputs in its order and names, then ours. Lists of prompts are
encoded in one pass.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .encode_list import encode_list
from .encode_sockets import (
    clip_input,
    picture_output,
    presentation_output,
    preview_input,
    reference_inputs,
    reference_size_input,
)
from .host.conditioning import reference_blocks
from .requests import Request, Row, reference_request
from .sockets import Schema, alpha_input, prompt_input, size_inputs

NODE = "Encode Prompt + Reference Image (H3TE)"


class EncodeReferences(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEEncodeReferences",
            display_name="Encode Prompt + Reference Image (H3TE)",
            description="Prompt with reference images, videos and sounds: <Picture 1>, <Video 1>, <Audio 1>.",
            search_aliases=["minimax reference to video", "ref2va", "参考图像", "多图参考", "提示词"],
            is_input_list=True,
            inputs=_inputs(),
            outputs=[
                io.Conditioning.Output(
                    display_name="positive", tooltip="For the guider of the H3 model.", is_output_list=True
                ),
                io.Latent.Output(tooltip="Empty video and audio latent of this size and length.", is_output_list=True),
                presentation_output(),
                picture_output(),
            ],
        )

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        """Takes and gives ComfyUI's lists, one value a prompt."""
        done = encode_list(inputs, NODE, cls.hidden, _request, _latents)
        return io.NodeOutput(done.positive, done.latents, done.presentations, done.pictures, ui=done.ui)


def _request(row: Row, preview: bool) -> Request:
    return reference_request(row, NODE, row.get("vae"), row.get("audio_vae"), preview)


def _latents(row: Row, request: Request) -> dict[str, Any]:
    blocks = reference_blocks(request.prepared, row.get("vae"), row.get("audio_vae"))
    return {"minimax_refs": blocks} if blocks else {}


def _inputs() -> list[io.Input]:
    return [
        clip_input(),
        io.Vae.Input("vae", optional=True, tooltip="Video VAE. Without it references condition the text only."),
        io.Vae.Input("audio_vae", optional=True, tooltip="Audio VAE. Without it sounds condition the text only."),
        prompt_input(),
        *size_inputs(),
        reference_size_input(),
        *reference_inputs(),
        alpha_input(),
        preview_input(),
    ]
