"""Encode Prompt + Reference Image (H3TE): prompt and references -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ReferenceToVideo: its inputs in its order and names, then ours.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..encoder.geometry import REFERENCE_SIZES
from .chains import AudioItem, ImageItem, VideoItem, checked_chain
from .host import report
from .host.any_clip import encode
from .host.conditioning import empty_latent, reference_blocks, with_values
from .host.references import prepare, ref_items, resolve_target, socket_items
from .sockets import (
    PRESENTATION_TIP,
    References,
    TextEncoderOnlyImage,
    gathered,
    growing,
    prompt_input,
    schema,
    size_inputs,
)

NODE = "Encode Prompt + Reference Image (H3TE)"
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
            inputs=_inputs(),
            outputs=[
                io.Conditioning.Output(display_name="positive", tooltip="For the guider of the H3 model."),
                io.Latent.Output(tooltip="Empty video and audio latent of this size and length."),
                io.String.Output(display_name="presentation", tooltip=PRESENTATION_TIP),
            ],
        )

    @classmethod
    def execute(
        cls,
        clip: Any,
        prompt: str,
        width: int,
        height: int,
        length: int,
        ref_image_size: str = "match",
        vae: Any = None,
        audio_vae: Any = None,
        references: Any = None,
        **sockets: Any,
    ) -> io.NodeOutput:
        target = resolve_target(width, height, length)
        groups = (gathered(sockets, name) for name in ("ref_images", "ref_videos", "ref_video_audios", "ref_audios"))
        chain = checked_chain(references, (ImageItem, VideoItem, AudioItem), NODE, "references")
        prepared = prepare([*socket_items(*groups), *chain], target, ref_image_size)
        done = encode(clip, NODE, prompt, minimax_ref_items=ref_items(prepared))
        blocks = reference_blocks(prepared, vae, audio_vae)
        positive = with_values(done.conditioning, {"minimax_refs": blocks} if blocks else {})
        notes = report.about_references(prepared, vae, audio_vae) + report.about_target(target, width, height, length)
        lines = [*notes, *done.notes, done.summary, *done.details]  # warnings first: a node shows two lines
        ui = report.show(cls.hidden.unique_id if cls.hidden else None, lines)
        return io.NodeOutput(positive, empty_latent(target), done.presentation, ui=ui)


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
    ]
