"""Encode Video Keyframes (H3TE): prompt and keyframes -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ImageToVideo: its inputs in its order and names, then ours.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import FITS, KeyframeItem, checked_chain
from .host import report
from .host.any_clip import encode
from .host.conditioning import empty_latent, fit_keyframes, keyframe_blocks, shown_images, with_values
from .host.references import resolve_target
from .sockets import PRESENTATION_TIP, Keyframes, prompt_input, schema, size_inputs

NODE = "Encode Video Keyframes (H3TE)"
FIT_TIP = (
    "How first_frame and last_frame meet the canvas. released: the first one given is stretched, the next one is "
    "scaled to cover and cropped. stretch, crop, pad: both alike."
)


class EncodeKeyframes(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="H3TEEncodeKeyframes",
            display_name="Encode Video Keyframes (H3TE)",
            description="Prompt with a first frame, a last frame, both or neither. They are <Picture 1>, <Picture 2>.",
            search_aliases=["minimax image to video", "fl2va", "t2va"],
            inputs=_inputs(),
            outputs=[
                io.Conditioning.Output(display_name="positive", tooltip="For the guider of the H3 model."),
                io.Latent.Output(tooltip="Empty video and audio latent of this size and length."),
                io.String.Output(display_name="presentation", tooltip=PRESENTATION_TIP),
                io.Int.Output("resolved_width", display_name="width", tooltip="Width used, a multiple of 32."),
                io.Int.Output("resolved_height", display_name="height", tooltip="Height used, a multiple of 32."),
                io.Int.Output("resolved_length", display_name="length", tooltip="Frames used, 17k + 5."),
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
        vae: Any = None,
        first_frame: Any = None,
        last_frame: Any = None,
        keyframes: Any = None,
        fit: str = "released",
    ) -> io.NodeOutput:
        target = resolve_target(width, height, length)
        chain = checked_chain(keyframes, (KeyframeItem,), NODE, "keyframes")
        fitted = fit_keyframes([*_socket_items(first_frame, last_frame, fit), *chain], target)
        done = encode(clip, NODE, prompt, images=shown_images(fitted))
        blocks = keyframe_blocks(fitted, vae)
        positive = with_values(done.conditioning, {"minimax_keyframes": blocks} if blocks else {})
        notes = [report.NO_VAE_KEYFRAMES] if fitted and vae is None else []
        notes += report.about_target(target, width, height, length)
        lines = [*notes, *done.notes, done.summary, *done.details]  # warnings first: a node shows two lines
        ui = report.show(cls.hidden.unique_id if cls.hidden else None, lines)
        size = (target.width, target.height, target.frames)
        return io.NodeOutput(positive, empty_latent(target), done.presentation, *size, ui=ui)


def _socket_items(first_frame: Any, last_frame: Any, fit: str) -> list[KeyframeItem]:
    placed = (("first_frame", first_frame, 0), ("last_frame", last_frame, -1))
    return [KeyframeItem(pixels, frame, fit, where=name) for name, pixels, frame in placed if pixels is not None]


def _inputs() -> list[io.Input]:
    return [
        io.Clip.Input("clip", tooltip="From Load MiniMax H3 Text Encoder (H3TE), or CLIPLoader with type minimax."),
        io.Vae.Input("vae", optional=True, tooltip="Video VAE. Without it keyframes will not pin frames."),
        prompt_input(),
        *size_inputs(),
        io.Image.Input("first_frame", optional=True, tooltip="The picture that the video starts with."),
        io.Image.Input("last_frame", optional=True, tooltip="The picture that the video ends with."),
        Keyframes.Input("keyframes", optional=True, tooltip="A chain of keyframes, after first_frame and last_frame."),
        io.Combo.Input("fit", options=list(FITS), default="released", optional=True, tooltip=FIT_TIP),
    ]
