"""Encode Prompt + Reference Image (H3TE): prompt and references -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ReferenceToVideo: its inputs in its order and names, then ours. Lists of prompts are
encoded in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comfy_api.latest import io

from ..encoder.geometry import REFERENCE_SIZES
from . import prompt_lists
from .chains import REFERENCES, checked_chain
from .colours import rgb
from .host import report
from .host.any_clip import Ask, encode_all
from .host.conditioning import empty_latent, reference_blocks, with_values
from .host.images import about_alpha, log_once
from .host.references import Prepared, Target, prepare, ref_items, resolve_target, socket_items
from .host.report_references import describe_references, reference_warnings
from .sockets import (
    PRESENTATION_TIP,
    References,
    TextEncoderOnlyImage,
    alpha_input,
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
            search_aliases=["minimax reference to video", "ref2va"],
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
        """Takes and gives ComfyUI's lists, one value a prompt; see prompt_lists.py."""
        rows = prompt_lists.rows(inputs, NODE)
        shared = [name for name in inputs if name not in ("clip", "prompt")]
        request_of = prompt_lists.once_each(_request, *shared)
        requests = [request_of(row) for row in rows]
        log_once(NODE, (line for r in requests for line in r.alpha))
        node_id = cls.hidden.unique_id if cls.hidden else None
        # before the long part: sizes and what they cost, in time to press Stop
        if known := report.of_list([r.facts for r in requests], [r.warnings for r in requests]):
            report.show(node_id, known)
        asks = [Ask(row["clip"], row["prompt"], r.asked) for row, r in zip(rows, requests, strict=True)]
        done = encode_all(asks, NODE)
        values_of = prompt_lists.once_each(lambda row: _latents(row, request_of(row)), *shared)
        positive = [with_values(each.conditioning, values_of(row)) for row, each in zip(rows, done, strict=True)]
        warned = [[*r.warnings, *d.notes] for r, d in zip(requests, done, strict=True)]
        said = [[d.summary, *r.facts, *d.details] for r, d in zip(requests, done, strict=True)]
        ui = report.show(node_id, report.of_list(said, warned))
        latents = [empty_latent(r.target) for r in requests]
        return io.NodeOutput(positive, latents, [each.presentation for each in done], ui=ui)


@dataclass(frozen=True, eq=False)
class _Request:
    """What several prompts share: the target, the references, how a CLIP is asked, and what the node says of them."""

    target: Target
    prepared: list[Prepared]
    asked: Mapping[str, Any]
    alpha: list[str]
    warnings: list[str]
    facts: list[str]


def _request(row: Mapping[str, Any]) -> _Request:
    size = row["width"], row["height"], row["length"]
    target = resolve_target(*size)
    chain = checked_chain(row.get("references"), REFERENCES, NODE, "references")
    colour, size_mode = row.get("alpha_colour", "white"), row.get("ref_image_size", "match")
    items = [*socket_items(*(gathered(row, group) for group in GROUPS)), *chain]
    prepared = prepare(items, target, size_mode, rgb(colour, f"{NODE}, alpha_colour"))
    vaes = row.get("vae"), row.get("audio_vae")
    alpha = about_alpha(items, colour)
    warnings = [*reference_warnings(prepared, *vaes), *report.about_target(target, *size), *alpha]
    facts = describe_references(prepared, size_mode, *vaes)
    return _Request(target, prepared, {"minimax_ref_items": ref_items(prepared)}, alpha, warnings, facts)


def _latents(row: Mapping[str, Any], request: _Request) -> dict[str, Any]:
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
