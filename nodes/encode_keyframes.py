"""Encode Video Keyframes (H3TE): prompt and keyframes -> conditioning and an empty latent.

A superset of ComfyUI's MiniMaxH3ImageToVideo: its inputs in its order and names, then ours. Lists of prompts are
encoded in one pass.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import FITS, KEYFRAMES, KeyframeItem, checked_chain
from .colours import rgb
from .encode_list import Request, Row, encode_list
from .host import report
from .host.images import about_alpha
from .host.keyframes import CANVASES, canvas_target, fit_keyframes, keyframe_blocks, shown_images
from .host.report_keyframes import about_canvas, describe_keyframes, keyframe_warnings
from .sockets import PRESENTATION_TIP, Keyframes, alpha_input, checked_choice, prompt_input, schema, size_inputs

NODE = "Encode Video Keyframes (H3TE)"
FIT_TIP = (
    "How first_frame and last_frame meet the canvas. released: the first one given is stretched, the next one is "
    "scaled to cover and cropped. stretch, crop, pad (on black): both alike."
)
CANVAS_TIP = (
    "given: width and height as they are. first image: the released canvas of the first keyframe's own aspect ratio "
    "(short edge 768); width and height are not read."
)


class EncodeKeyframes(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
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
        return io.NodeOutput(done.positive, done.latents, done.presentations, *size, ui=done.ui)


def _request(row: Row) -> Request:
    fit = checked_choice(row.get("fit", FITS[0]), FITS, f"{NODE}, fit")
    chain = checked_chain(row.get("keyframes"), KEYFRAMES, NODE, "keyframes")
    items = [*_socket_items(row, fit), *chain]
    width, height, length = row["width"], row["height"], row["length"]
    canvas, colour = row.get("canvas", CANVASES[0]), row.get("alpha_colour", "white")
    target = canvas_target(canvas, items, width, height, length)
    fitted = fit_keyframes(items, target, rgb(colour, f"{NODE}, alpha_colour"))
    facts = describe_keyframes(fitted)
    if canvas != CANVASES[0]:  # then width and height are not what was asked for
        width, height = target.width, target.height
        facts.insert(0, about_canvas(items, target))
    alpha = about_alpha(items, colour)
    warnings = keyframe_warnings(fitted, row.get("vae")) + report.about_target(target, width, height, length) + alpha
    return Request(target, fitted, {"images": shown_images(fitted)}, alpha, warnings, facts)


def _socket_items(row: Row, fit: str) -> list[KeyframeItem]:
    placed = (("first_frame", 0), ("last_frame", -1))
    return [KeyframeItem(row[name], frame, fit, where=name) for name, frame in placed if row.get(name) is not None]


def _latents(row: Row, request: Request) -> dict[str, Any]:
    blocks = keyframe_blocks(request.prepared, row.get("vae"))
    return {"minimax_keyframes": blocks} if blocks else {}


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
        alpha_input(),
        io.Combo.Input("canvas", options=list(CANVASES), default=CANVASES[0], optional=True, tooltip=CANVAS_TIP),
    ]


def _outputs() -> list[io.Output]:
    return [
        io.Conditioning.Output(display_name="positive", tooltip="For the guider of the H3 model.", is_output_list=True),
        io.Latent.Output(tooltip="Empty video and audio latent of this size and length.", is_output_list=True),
        io.String.Output(display_name="presentation", tooltip=PRESENTATION_TIP, is_output_list=True),
        io.Int.Output(
            "resolved_width", display_name="width", tooltip="Width used, a multiple of 32.", is_output_list=True
        ),
        io.Int.Output(
            "resolved_height", display_name="height", tooltip="Height used, a multiple of 32.", is_output_list=True
        ),
        io.Int.Output("resolved_length", display_name="length", tooltip="Frames used, 17k + 5.", is_output_list=True),
    ]
