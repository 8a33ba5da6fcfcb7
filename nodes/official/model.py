"""transformers' Qwen3-VL, cut at the tap, over an encoder's weights: the official path as a second opinion.

Contract: `official_model(encoder)` -> an OfficialModel with the encoder's own `encode_ids` and `encode_presentation`;
transformers computes everything but the weights' way to the device. Equal to the encoder bit for bit on the CPU but for
the patch embedding (the released convolution here, a matrix product there). The patches it needs are installed as long
as it lives. Source: transformers 4.57 and later; which releases are compared is in docs/transformers-versions.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Mapping
from importlib import metadata

import torch
from torch import nn

from ...encoder import Conditioning, Encoder, EncoderConfig
from ...encoder.diagnosis import is_finite
from ...encoder.placement import find_blocks
from ...encoder.presentation import Presentation
from ...encoder.progress import Progress
from ...encoder.prompt_notes import prompt_notes
from ...encoder.token_inputs import check_ids, grid_list, pair_patches
from ...encoder.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, tokenize
from ...patches import Patches, for_transformers
from ...patches.closed_interpolation import choose
from ...patches.qwen3_vl import families
from .leaves import exchange
from .steps import watched

_OURS = "or choose the backend of the pack, which needs no transformers."
PICTURES = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


def official_model(encoder: Encoder) -> OfficialModel:
    """encoder: built or loaded, with or without weights yet. Raises RuntimeError where transformers is missing, too
    old or unknown, ValueError for an encoder that cannot be compared."""
    if encoder.tp_size != 1:
        raise ValueError(
            f"Official backend: expected an encoder on one device, got one shared by {encoder.tp_size}. "
            "Compare without tensor parallel."
        )
    vision = encoder.config.vision
    if vision and encoder.tap_layer <= len(vision.deepstack_visual_indexes):
        raise ValueError(
            f"Official backend: expected a tap above layer {len(vision.deepstack_visual_indexes)}, got "
            f"{encoder.tap_layer}. MiniMax H3 is tapped at 50."
        )
    _check_transformers()
    patches = for_transformers()
    patches.apply()
    try:
        return OfficialModel(encoder, _build(encoder), patches)
    except BaseException:
        patches.remove()
        raise


class OfficialModel:
    """Built by `official_model`; computes on the encoder's device unless another is given."""

    def __init__(self, encoder: Encoder, model: nn.Module, patches: Patches):
        self.encoder, self.model = encoder, model
        self.close = weakref.finalize(self, patches.remove)

    def encode_presentation(
        self, presentation: Presentation, *, progress: Progress | None = None, device: torch.device | None = None
    ) -> Conditioning:
        """As `Encoder.encode_presentation`."""
        sequence = tokenize(presentation, self.encoder.tokenizer)
        pictures = {}
        for modality, names in PICTURES.items():
            if (patches := getattr(presentation, modality)) is not None:
                pictures |= zip(names, (patches.pixel_values, patches.grid_thw), strict=True)
        hidden = self.encode_ids(sequence.ids, **pictures, progress=progress, device=device)
        return Conditioning(
            hidden[None], sequence.tags, sequence.ids, sequence, presentation, prompt_notes(presentation)
        )

    @torch.no_grad()
    def encode_ids(
        self,
        input_ids: torch.Tensor,
        *,
        progress: Progress | None = None,
        device: torch.device | None = None,
        **pictures: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `Encoder.encode_ids`: ids [S], patches and grids of each modality -> hidden states [S, D]."""
        given = {name: tensor for name, tensor in pictures.items() if tensor is not None}
        self._check(input_ids, given)
        self.encoder.materialise()
        device = torch.device(device or self.encoder.device)
        ids = input_ids.to(device)[None]
        moved = {name: tensor.to(device) for name, tensor in given.items()}
        with watched(self.model, progress, sees=bool(given)):
            out = self.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **moved, **self._types(ids)
            )
        hidden = out.last_hidden_state[0]
        if not is_finite(hidden):
            raise RuntimeError(
                f"Official backend: expected finite hidden states, got NaN or infinity in {self.encoder.dtype} on "
                f"{device}. Choose the backend of the pack, which names the layer."
            )
        return hidden

    def _types(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """transformers 5 asks for the modality of every token; earlier releases find it from the ids."""
        if "mm_token_type_ids" not in inspect.signature(self.model.get_rope_index).parameters:
            return {}
        return {"mm_token_type_ids": (ids == IMAGE_PAD).int() + 2 * (ids == VIDEO_PAD).int()}

    def _check(self, ids: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        """The checks of `Encoder.encode_ids`, before anything is computed."""
        config = self.encoder.config
        check_ids(ids, config.text.vocab_size)
        if unknown := set(given) - {name for names in PICTURES.values() for name in names}:
            raise ValueError(
                f"Official backend: expected pixel values and grids, got {sorted(unknown)}. Leave them out."
            )
        if given and config.vision is None:
            raise ValueError(
                "Official backend: expected a text-only request, got pictures: this checkpoint has no vision tower. "
                "Load a file that holds it."
            )
        grids = []
        for pixels, grid in PICTURES.values():
            both = given.get(pixels), given.get(grid)
            patches = None
            if config.vision and both != (None, None):
                vision = config.vision
                patches = pair_patches(*both, pixels, grid, vision.patch_width, vision.spatial_merge_size)
            grids.append(grid_list(patches))
        find_blocks(ids.cpu(), *grids, config.vision.spatial_merge_size if config.vision else 1)


def _check_transformers() -> None:
    try:
        version = metadata.version("transformers")
        known = families()
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise RuntimeError(
            f"Official backend: expected the package transformers, 4.57 or newer, got none that imports ({error}). "
            f"Install it (pip install transformers), {_OURS}"
        ) from error
    if not any(family.tower.__name__ == "Qwen3VLVisionModel" for family in known):
        raise RuntimeError(
            f"Official backend: expected transformers 4.57 to 5.x with its Qwen3-VL, got {version}. "
            f'Install such a release (pip install "transformers>=4.57,<6"), {_OURS}'
        )


def _build(encoder: Encoder) -> nn.Module:
    """transformers' model of this shape, weightless; its rotary frequencies are its own."""
    from transformers.models.qwen3_vl import Qwen3VLModel

    config = _config(encoder.config, encoder.tap_layer)
    with torch.device("meta"):
        model = Qwen3VLModel(config).eval().requires_grad_(False)
    model.language_model.norm = nn.Identity()
    text = model.language_model
    text.rotary_emb = type(text.rotary_emb)(config=config.text_config)
    vision = config.vision_config
    rotary = type(model.visual.rotary_pos_emb)
    by_config = "config" in inspect.signature(rotary.__init__).parameters
    model.visual.rotary_pos_emb = rotary(vision if by_config else vision.hidden_size // vision.num_heads // 2)
    exchange(model, encoder)
    choose(model)
    return model


def _config(config: EncoderConfig, layers: int):
    from transformers.models.qwen3_vl import Qwen3VLConfig

    text = {**dataclasses.asdict(config.text), "num_hidden_layers": layers, "attention_bias": False}
    section = list(text.pop("mrope_section"))
    text["rope_scaling"] = {"mrope_interleaved": True, "mrope_section": section, "rope_type": "default"}
    vision = dataclasses.asdict(config.vision) if config.vision else {}
    if vision:
        vision["deepstack_visual_indexes"] = list(vision["deepstack_visual_indexes"])
    tokens = {"image_token_id": IMAGE_PAD, "video_token_id": VIDEO_PAD}
    tokens |= {"vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}
    made = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
    made._attn_implementation = "sdpa"
    return made
