"""Inputs of a node -> what is asked of a text encoder: by references or by keyframes, the node's warnings and facts.

Contract: each function takes one row of plain values (prompt_lists.py) and the name of the node, which errors begin
with where an input of its own is wrong. With `outlines` it is the same request from sizes alone, for a preview.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..encoder.geometry import REFERENCE_SIZES
from .chains import FITS, KEYFRAMES, REFERENCES, KeyframeItem, checked_chain
from .colours import rgb
from .host import report
from .host.images import about_alpha
from .host.keyframes import CANVASES, canvas_target, fit_keyframes, shown_images
from .host.references import Target, prepare, ref_items, resolve_target, socket_items
from .host.report_keyframes import about_canvas, described_keyframes, keyframe_facts, keyframe_warnings
from .host.report_references import about_sizes, described, facts_of, reference_warnings, riding
from .sockets import checked_choice, gathered

Row = Mapping[str, Any]
GROUPS = ("ref_images", "ref_videos", "ref_video_audios", "ref_audios")


@dataclass(frozen=True, eq=False)
class Request:
    """What several prompts share: the target, the pictures and sounds made ready, how a CLIP is asked (the keyword of
    `CLIP.tokenize`), and what the node says of them. notes: what arrived and became of it, by part ("Picture 1");
    riding: what of it rides in every sampling step, "" where nothing can; resized: what is seen much smaller or larger
    than it arrived."""

    target: Target
    prepared: list
    asked: Mapping[str, Any]
    alpha: list[str]
    warnings: list[str]
    facts: list[str]
    notes: Mapping[str, str] = field(default_factory=dict)
    riding: str = ""
    resized: list[str] = field(default_factory=list)


def reference_request(row: Row, node: str, vae: Any, audio_vae: Any, outlines: bool = False) -> Request:
    """vae, audio_vae: None for a sampler that is given no latent of the references."""
    size_mode = checked_choice(row.get("ref_image_size", "match"), REFERENCE_SIZES, f"{node}, ref_image_size")
    size = row["width"], row["height"], row["length"]
    target = resolve_target(*size)
    chain = checked_chain(row.get("references"), REFERENCES, node, "references")
    colour = row.get("alpha_colour", "white")
    items = [*socket_items(*(gathered(row, group) for group in GROUPS)), *chain]
    prepared = prepare(items, target, size_mode, rgb(colour, f"{node}, alpha_colour"), outlines)
    alpha = about_alpha(items, colour)
    warnings = [*reference_warnings(prepared, vae, audio_vae), *report.about_target(target, *size), *alpha]
    said = described(prepared, size_mode, vae, audio_vae)
    return Request(
        target, prepared, {"minimax_ref_items": ref_items(prepared)}, alpha, warnings, facts_of(said, prepared),
        {each.label: each.text for each in said}, riding(said), about_sizes(prepared),
    )  # fmt: skip


def keyframe_request(row: Row, node: str, vae: Any, outlines: bool = False) -> Request:
    """vae: None for keyframes that pin nothing."""
    fit = checked_choice(row.get("fit", FITS[0]), FITS, f"{node}, fit")
    chain = checked_chain(row.get("keyframes"), KEYFRAMES, node, "keyframes")
    items = [*_socket_keyframes(row, fit), *chain]
    width, height, length = row["width"], row["height"], row["length"]
    canvas, colour = row.get("canvas", CANVASES[0]), row.get("alpha_colour", "white")
    target = canvas_target(canvas, items, width, height, length)
    fitted = fit_keyframes(items, target, rgb(colour, f"{node}, alpha_colour"), outlines)
    facts = keyframe_facts(fitted)
    if canvas != CANVASES[0]:  # then width and height are not what was asked for
        width, height = target.width, target.height
        facts.insert(0, about_canvas(items, target))
    alpha = about_alpha(items, colour)
    warnings = keyframe_warnings(fitted, vae) + report.about_target(target, width, height, length) + alpha
    return Request(
        target, fitted, {"images": shown_images(fitted)}, alpha, warnings, facts, described_keyframes(fitted)
    )


def _socket_keyframes(row: Row, fit: str) -> list[KeyframeItem]:
    placed = (("first_frame", 0), ("last_frame", -1))
    return [KeyframeItem(row[name], frame, fit, where=name) for name, frame in placed if row.get(name) is not None]
