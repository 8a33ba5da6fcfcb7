"""Inputs and outputs that the encode nodes and Show Presentation have alike.

Contract: ids, order within a function, defaults and options are frozen, as saved workflows hold them.
"""

from __future__ import annotations

from comfy_api.latest import io

from ..encoder.geometry import REFERENCE_SIZES
from .chains import FITS
from .host.keyframes import CANVASES
from .sockets import PRESENTATION_TIP, Keyframes, References, TextEncoderOnlyImage, growing

MOST_PICTURES = 16  # of one list

CLIP_TIP = "From Load MiniMax H3 Text Encoder (H3TE), or CLIPLoader with type minimax."
PICTURE_TIP = "A reference image; every picture of a batch is a reference of its own."
SIZE_TIP = (
    "match: at most the video's pixel area, never enlarged. max: short edge at most 2048. official: short edge 2048, "
    "enlarged too (most tokens). none: as it is. Reference tokens ride through every sampling step."
)
FIT_TIP = (
    "How first_frame and last_frame meet the canvas. released: the first one given is stretched, the next one is "
    "scaled to cover and cropped. stretch, crop, pad (on black): both alike."
)
CANVAS_TIP = (
    "given: width and height as they are. first image: the released canvas of the first keyframe's own aspect ratio "
    "(short edge 768); width and height are not read."
)
PREVIEW_TIP = (
    "On: shows what the encoder would read, its tokens and warnings; nothing is encoded and nothing after this node "
    "runs."
)
IMAGE_TIP = (
    "The presentation as a picture: what the text encoder read, tokens of each part, warnings. Of a list of prompts, "
    f"the first {MOST_PICTURES}."
)


def clip_input(optional: bool = False, tooltip: str = CLIP_TIP) -> io.Input:
    return io.Clip.Input("clip", optional=optional, tooltip=tooltip)


def reference_size_input() -> io.Input:
    return io.Combo.Input("ref_image_size", options=list(REFERENCE_SIZES), default="match", tooltip=SIZE_TIP)


def reference_inputs() -> list[io.Input]:
    """The growing sockets, then the chain."""
    picture = io.MultiType.Input(io.Image.Input("ref_image", tooltip=PICTURE_TIP), types=[TextEncoderOnlyImage])
    video = io.Image.Input("ref_video", tooltip="Frames of a reference video at 24 fps, 2 to 15 s.")
    soundtrack = io.Audio.Input("ref_video_audio", tooltip="Soundtrack of the reference video of the same number.")
    sound = io.Audio.Input("ref_audio", tooltip="A reference sound of its own.")
    return [
        *growing("ref_images", picture, "ref_image_", 9, "Reference images, <Picture 1> and so on."),
        *growing("ref_videos", video, "ref_video_", 3, "Reference videos, <Video 1> and so on."),
        *growing("ref_video_audios", soundtrack, "ref_video_audio_", 3, "Soundtracks of the reference videos."),
        *growing("ref_audios", sound, "ref_audio_", 3, "Reference sounds, <Audio 1> and so on, after the soundtracks."),
        References.Input("references", optional=True, tooltip="A chain of references, after those on the sockets."),
    ]


def keyframe_inputs() -> list[io.Input]:
    """The two sockets, then the chain."""
    return [
        io.Image.Input("first_frame", optional=True, tooltip="The picture that the video starts with."),
        io.Image.Input("last_frame", optional=True, tooltip="The picture that the video ends with."),
        Keyframes.Input("keyframes", optional=True, tooltip="A chain of keyframes, after first_frame and last_frame."),
    ]


def fit_input() -> io.Input:
    return io.Combo.Input("fit", options=list(FITS), default="released", optional=True, tooltip=FIT_TIP)


def canvas_input() -> io.Input:
    return io.Combo.Input("canvas", options=list(CANVASES), default=CANVASES[0], optional=True, tooltip=CANVAS_TIP)


def preview_input() -> io.Input:
    return io.Boolean.Input("preview_only", default=False, optional=True, tooltip=PREVIEW_TIP)


def presentation_output(tooltip: str = PRESENTATION_TIP) -> io.Output:
    return io.String.Output(display_name="presentation", tooltip=tooltip, is_output_list=True)


def picture_output() -> io.Output:
    return io.Image.Output(display_name="presentation_image", tooltip=IMAGE_TIP, is_output_list=True)
