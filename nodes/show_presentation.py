"""Show Presentation (H3TE): prompt with references or keyframes -> what MiniMax H3 would read of it, and what it costs.

Contract: computed from sizes and a look at the pixels; no weight is read, no checkpoint is needed. Takes the inputs of
both encode nodes under their names; references and keyframes together are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from . import prompt_lists
from .encode_list import asked, requests_of, show
from .encode_sockets import (
    MOST_PICTURES,
    canvas_input,
    clip_input,
    fit_input,
    keyframe_inputs,
    picture_output,
    presentation_output,
    reference_inputs,
    reference_size_input,
)
from .host.images import log_once
from .host.pictures import pictures_of, shown_on_node
from .host.preview import preview_all
from .requests import GROUPS, Request, Row, keyframe_request, reference_request
from .sockets import Schema, alpha_input, gathered, prompt_input, size_inputs

NODE = "Show Presentation (H3TE)"
CLIP_TIP = "Optional: tells what its caches would make of the request. Nothing is loaded for it."
TEXT_TIP = "What the text encoder would read, vision blocks as sizes."
WITH_VAE = True  # stands for a VAE: costs are told as they are with one


class ShowPresentation(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEShowPresentation",
            display_name="Show Presentation (H3TE)",
            description="Shows what the text encoder would read, tokens of each part and warnings, without encoding.",
            search_aliases=["preview prompt", "token count", "minimax", "what the model sees", "展示", "预览", "词元"],
            is_input_list=True,
            is_output_node=True,
            inputs=_inputs(),
            outputs=[
                picture_output(),
                presentation_output(TEXT_TIP),
                io.Int.Output(display_name="tokens", tooltip="Tokens in all, prompt included.", is_output_list=True),
            ],
        )

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        """Takes and gives ComfyUI's lists, one value a prompt."""
        rows = prompt_lists.rows(inputs, NODE)
        shared = [name for name in inputs if name not in ("clip", "prompt")]
        requests = requests_of(rows, prompt_lists.once_each(_request, *shared))
        log_once(NODE, (line for each in requests for line in each.alpha))
        done = preview_all([asked(row, each) for row, each in zip(rows, requests, strict=True)], NODE)
        pictures = pictures_of(NODE, requests, done, MOST_PICTURES)
        ui = show(requests, done, cls.hidden.unique_id if cls.hidden else None) | shown_on_node(pictures)
        tokens = [len(each.shown.sequence) for each in done]
        return io.NodeOutput(pictures, [each.presentation for each in done], tokens, ui=ui)


def _request(row: Row) -> Request:
    references = [f"{group}.{group[:-1]}_{i}" for group in GROUPS for i in gathered(row, group)]
    references += ["references"] if row.get("references") is not None else []
    keyframes = [name for name in ("first_frame", "last_frame", "keyframes") if row.get(name) is not None]
    if references and keyframes:
        raise ValueError(
            f"{NODE}: expected references or keyframes, got {', '.join(references)} and {', '.join(keyframes)}. "
            "Unlink one kind: the model takes either."
        )
    if keyframes:
        return keyframe_request(row, NODE, WITH_VAE, outlines=True)
    request = reference_request(row, NODE, WITH_VAE, WITH_VAE, outlines=True)
    return replace(request, riding=f"{request.riding}, with VAEs") if request.riding else request


def _inputs() -> list[io.Input]:
    return [
        prompt_input(),
        *size_inputs(),
        reference_size_input(),
        clip_input(optional=True, tooltip=CLIP_TIP),
        *reference_inputs(),
        *keyframe_inputs(),
        fit_input(),
        canvas_input(),
        alpha_input(),
    ]
