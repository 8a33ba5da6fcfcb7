"""Encode Prompt + Reference Image (H3TE): prompt and references -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ReferenceToVideo: its inputs in its order and names, then ours. Lists of prompts are
encoded in one pass.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..encoder.geometry import REFERENCE_SIZES
from .chains import REFERENCES, checked_chain
from .colours import rgb
from .encode_list import Request, Row, encode_list
from .host import report
from .host.conditioning import reference_blocks
from .host.images import about_alpha
from .host.references import prepare, ref_items, resolve_target, socket_items
from .host.report_references import describe_references, reference_warnings
from .sockets import (
    PRESENTATION_TIP,
    References,
    TextEncoderOnlyImage,
    alpha_input,
    checked_choice,
    gathered,
    growing,
    prompt_input,
    schema,
    size_inputs,
)

NODE = "Encode Prompt + Reference Image (H3TE)"
GROUPS = ("ref_images", "ref_videos", "ref_video_audios", "ref_audios")
PICTURE_TIP = "A reference image; every picture of a batch is a reference of its own."
SIZE_TIP = (
    "match: at most the video's pixel area, never enlarged. max: short edge at most 2048. official: short edge 2048, "
    "enlarged too (most tokens). none: as it is. Reference tokens ride through every sampling step."
)


class EncodeReferences(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
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
                io.String.Output(display_name="presentation", tooltip=PRESENTATION_TIP, is_output_list=True),
            ],
        )

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        """Takes and gives ComfyUI's lists, one value a prompt."""
        done = encode_list(inputs, NODE, cls.hidden, _request, _latents)
        return io.NodeOutput(done.positive, done.latents, done.presentations, ui=done.ui)


def _request(row: Row) -> Request:
    size_mode = checked_choice(row.get("ref_image_size", "match"), REFERENCE_SIZES, f"{NODE}, ref_image_size")
    size = row["width"], row["height"], row["length"]
    target = resolve_target(*size)
    chain = checked_chain(row.get("references"), REFERENCES, NODE, "references")
    colour = row.get("alpha_colour", "white")
    items = [*socket_items(*(gathered(row, group) for group in GROUPS)), *chain]
    prepared = prepare(items, target, size_mode, rgb(colour, f"{NODE}, alpha_colour"))
    vaes = row.get("vae"), row.get("audio_vae")
    alpha = about_alpha(items, colour)
    warnings = [*reference_warnings(prepared, *vaes), *report.about_target(target, *size), *alpha]
    facts = describe_references(prepared, size_mode, *vaes)
    return Request(target, prepared, {"minimax_ref_items": ref_items(prepared)}, alpha, warnings, facts)


def _latents(row: Row, request: Request) -> dict[str, Any]:
    blocks = reference_blocks(request.prepared, row.get("vae"), row.get("audio_vae"))
    return {"minimax_refs": blocks} if blocks else {}


def _inputs() -> list[io.Input]:
    picture = io.MultiType.Input(io.Image.Input("ref_image", tooltip=PICTURE_TIP), types=[TextEncoderOnlyImage])
    video = io.Image.Input("ref_video", tooltip="Frames of a reference video at 24 fps, 2 to 15 s.")
    soundtrack = io.Audio.Input("ref_video_audio", tooltip="Soundtrack of the reference video of the same number.")
    sound = io.Audio.Input("ref_audio", tooltip="A reference sound of its own.")
    return [
        io.Clip.Input("clip", tooltip="From Load MiniMax H3 Text Encoder (H3TE), or CLIPLoader with type minimax."),
        io.Vae.Input("vae", optional=True, tooltip="Video VAE. Without it references condition the text only."),
        io.Vae.Input("audio_vae", optional=True, tooltip="Audio VAE. Without it sounds condition the text only."),
        prompt_input(),
        *size_inputs(),
        io.Combo.Input("ref_image_size", options=list(REFERENCE_SIZES), default="match", tooltip=SIZE_TIP),
        *growing("ref_images", picture, "ref_image_", 9, "Reference images, <Picture 1> and so on."),
        *growing("ref_videos", video, "ref_video_", 3, "Reference videos, <Video 1> and so on."),
        *growing("ref_video_audios", soundtrack, "ref_video_audio_", 3, "Soundtracks of the reference videos."),
        *growing("ref_audios", sound, "ref_audio_", 3, "Reference sounds, <Audio 1> and so on, after the soundtracks."),
        References.Input("references", optional=True, tooltip="A chain of references, after those on the sockets."),
        alpha_input(),
    ]
