"""Inputs and socket types that several nodes share, on every release of ComfyUI's node API.

Contract: newer releases grow sockets (io.Autogrow) whose API keys are flat, `ref_images.ref_image_0`; older ones get
fixed optional sockets with those very ids, so that one API graph runs on both. Schema fields that a release lacks are
left out. A link that takes any type passes by ComfyUI's own checks of a widget: `checked_*` are made for that.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from comfy_api.latest import io

from .host.references import MAX_FRAMES, MAX_SIDE

CATEGORY = "MiniMax H3/text encoder"

References = io.Custom("H3TE_REFERENCES")
Keyframes = io.Custom("H3TE_KEYFRAMES")
Options = io.Custom("OPTIONS")
TextEncoderOnlyImage = io.Custom("MINIMAX_H3_REFERENCE_IMAGE")

PRESENTATION_TIP = "What the text encoder read, vision blocks as sizes."
LENGTH_TIP = (
    "Frames at 24 fps, raised to the model's grid of 17k + 5 (124 is about 5 s; trained lengths are about 124 to 362)."
)


def Schema(**fields: Any) -> io.Schema:
    """io.Schema with the fields that this release knows; the node's id is read by hidden unique_id for its text.

    ComfyUI-Manager looks for this name in sources, with a `node_id` written out, to know whose node is missing.
    """
    known = {field.name for field in dataclasses.fields(io.Schema)}
    fields = {"category": CATEGORY, "hidden": [io.Hidden.unique_id], **fields}
    return io.Schema(**{name: value for name, value in fields.items() if name in known})


def prompt_input() -> io.Input:
    return io.String.Input(
        "prompt",
        multiline=True,
        dynamic_prompts=True,
        tooltip="What the video shows and sounds like. References are named as <Picture 1>, <Video 1>, <Audio 1>.",
    )


def size_inputs() -> list[io.Input]:
    """width, height, length, with the host's ids, defaults and steps."""
    side = {"min": 32, "max": MAX_SIDE, "step": 32}
    return [
        io.Int.Input("width", default=1344, tooltip="Width of the video in pixels, a multiple of 32.", **side),
        io.Int.Input("height", default=768, tooltip="Height of the video in pixels, a multiple of 32.", **side),
        io.Int.Input("length", default=124, min=5, max=MAX_FRAMES, step=17, tooltip=LENGTH_TIP),
    ]


def alpha_input() -> io.Input:
    return io.String.Input(
        "alpha_colour",
        default="white",
        optional=True,
        tooltip="Transparent parts of pictures are put on this colour: a name, or #rrggbb.",
    )


def vision_only_input() -> io.Input:
    return io.Boolean.Input(
        "vision_only", default=False, tooltip="On: conditions the text alone; the sampler is given no latent of it."
    )


def chain_input(kind: Any, name: str, tooltip: str) -> io.Input:
    """The chain so far, on a node that adds to its end."""
    return kind.Input(name, optional=True, tooltip=tooltip)


def checked_switch(value: Any, where: str) -> bool:
    """True or False and nothing that counts as one of them: "false" is true. Raises ValueError naming `where`."""
    if not isinstance(value, bool):
        raise ValueError(f"{where}: expected True or False, got {value!r:.60}. Connect a BOOLEAN, or set the switch.")
    return value


def checked_choice(value: Any, choices: Sequence[str], where: str) -> str:
    """One of `choices`. Raises ValueError naming `where`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{where}: expected {' or '.join(choices)}, got {value!r:.60}. Choose one.")
    return value


def is_finite(value: Any) -> bool:
    """Whether it is a number of any kind that a float can hold; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


def growing(group: str, template: io.Input, prefix: str, count: int, tooltip: str) -> list[io.Input]:
    """`count` optional sockets `<group>.<prefix>0`...; one growing input where the release has it."""
    if hasattr(io, "Autogrow"):
        grown = io.Autogrow.TemplatePrefix(input=template, prefix=prefix, min=0, max=count)
        return [io.Autogrow.Input(group, optional=True, template=grown, tooltip=tooltip)]
    return [_numbered(template, f"{group}.{prefix}{i}", f"{prefix}{i}", tooltip) for i in range(count)]


def _numbered(template: io.Input, socket_id: str, label: str, tooltip: str) -> io.Input:
    tip = template.tooltip or tooltip
    if isinstance(template, io.MultiType.Input):
        kinds = [io.Image, *(t for t in template.io_types if t.io_type != "IMAGE")]
        return io.MultiType.Input(socket_id, types=kinds, display_name=label, optional=True, tooltip=tip)
    return type(template)(socket_id, display_name=label, optional=True, tooltip=tip)


def gathered(inputs: Mapping[str, Any], group: str) -> dict[int, Any]:
    """The linked sockets of a group as {number: value}, in socket order, whichever way this release sends them. Raises
    ValueError naming a socket that the group does not have."""
    grown = {name: value for name, value in (inputs.get(group) or {}).items() if value is not None}
    prefix = group + "."
    flat = {name[len(prefix) :]: v for name, v in inputs.items() if name.startswith(prefix) and v is not None}
    numbered = {_number(name, group): value for name, value in {**grown, **flat}.items()}
    return dict(sorted(numbered.items()))


def _number(name: str, group: str) -> int:
    prefix = group.removesuffix("s") + "_"
    found = re.fullmatch(re.escape(prefix) + "([0-9]{1,4})", name)
    if not found:
        raise ValueError(
            f"{group}.{name:.60}: expected a socket named as {group}.{prefix}0 is, with its number at the end, "
            f"got {name!r:.60}. Correct the name in the workflow."
        )
    return int(found[1])
