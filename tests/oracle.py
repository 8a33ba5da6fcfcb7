"""The official path at tiny size: transformers' Qwen3-VL model, tokenizer and processors on the same weights.

Contract: `official_inputs(prompt, references, tokenizer_folder)` lays a request out by the released rules, written
here a second time and on purpose not with our code; `Oracle(dtype).hidden(inputs)` is `hidden_states[tap_layer]`.
What differs between releases of transformers (4.57 and later) is confined to `_token_types`, `_image_processor` and the
per-frame cap in `official_patches`.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import transformers
from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.tokens import ADDED_TOKENS, H3_TOKENS, QWEN_PLAIN, QWEN_SPECIAL
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights
from transformers import AutoTokenizer
from transformers.models import qwen2_vl
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLModel, Qwen3VLVideoProcessor

START, END, PADS = 151652, 151653, {"image": 151655, "video": 151656}
TRANSFORMERS_4 = transformers.__version__.startswith("4.")
HALF = [0.5, 0.5, 0.5]
PATCHING = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": HALF, "image_std": HALF}
# A height of 1 or 3 would be taken for channels if the layout were not named.
TENSORS = {"input_data_format": "channels_last", "return_tensors": "pt"}


@dataclass(frozen=True)
class Inputs:
    """ids int64 [S]; patches float32 [N, 1536] and grids int64 [n, 3] of each modality, or None."""

    ids: torch.Tensor
    pixel_values: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    pixel_values_videos: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None

    @property
    def pictures(self) -> dict[str, torch.Tensor | None]:
        """Everything but the ids, by the argument names of `encode_ids`, which are transformers' own."""
        return {name: value for name, value in vars(self).items() if name != "ids"}


@lru_cache(maxsize=1)
def tiny_state() -> Mapping[str, torch.Tensor]:
    """The goldens' weights by released name, bfloat16, made once per run. Not to be changed in place."""
    return dict(tiny_weights())


class Oracle:
    """transformers' model on the tiny weights, cut after `tap_layer` layers, without the final norm."""

    def __init__(self, dtype: torch.dtype, tap_layer: int = TAP_LAYER):
        self.model = Qwen3VLModel(_model_config(tap_layer)).eval().requires_grad_(False)
        wanted = self.model.state_dict().keys()
        state = {name.removeprefix("model."): tensor for name, tensor in tiny_state().items()}
        # Assigned, not copied or cast as a whole: `.to(bfloat16)` would round the rotary tables' inv_freq as well.
        self.model.load_state_dict({name: state[name].to(dtype) for name in wanted}, assign=True)
        self.model.language_model.norm = torch.nn.Identity()

    @torch.no_grad()
    def hidden(self, inputs: Inputs, **options) -> torch.Tensor:
        """hidden states [S, D] after the last layer."""
        return self._run(inputs, **options).last_hidden_state[0]

    def states(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """`hidden_states` as transformers numbers them: the embeddings, then the output of every layer, each [S, D]."""
        return tuple(state[0] for state in self._run(inputs, output_hidden_states=True).hidden_states)

    @torch.no_grad()
    def _run(self, inputs: Inputs, **options):
        ids = inputs.ids[None]
        pictures = {name: value for name, value in inputs.pictures.items() if value is not None}
        mask = torch.ones_like(ids)
        return self.model(
            input_ids=ids, attention_mask=mask, use_cache=False, **pictures, **_token_types(self.model, ids), **options
        )

    def position_ids(self, inputs: Inputs) -> torch.Tensor:
        """M-RoPE positions int64 [3, S]."""
        ids = inputs.ids[None]
        grids = {"image_grid_thw": inputs.image_grid_thw, "video_grid_thw": inputs.video_grid_thw}
        return self.model.get_rope_index(ids, **grids, **_token_types(self.model, ids))[0][:, 0]


def _model_config(tap_layer: int) -> Qwen3VLConfig:
    config = Qwen3VLConfig(**tiny_config(num_hidden_layers=tap_layer))
    config._attn_implementation = "sdpa"
    return config


def _token_types(model: Qwen3VLModel, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """transformers 5 asks for the modality of every token; earlier releases find it from the ids."""
    if "mm_token_type_ids" not in inspect.signature(model.get_rope_index).parameters:
        return {}
    return {"mm_token_type_ids": (ids == PADS["image"]).int() + 2 * (ids == PADS["video"]).int()}


def official_tokenizer(files: Path, folder: Path):
    """transformers' tokenizer over `folder`, made of vocab.json and merges.txt in `files` and the released settings.

    The tokenizer_config.json that ComfyUI bundles beside those files is another model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(files / name, folder / name)
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = [{"content": text, "special": text not in QWEN_PLAIN, **plain} for text in ADDED_TOKENS[:26]]
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(151643 + i): token for i, token in enumerate(added)},
        "additional_special_tokens": [*QWEN_SPECIAL[1:], *H3_TOKENS],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder)


def official_patches(modality: str, pixels: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """All images [H, W, 3], or all sampled videos [T, H, W, 3], of a request in one call, as released."""
    if modality == "image":
        limits = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
        out = _image_processor()(size=limits, **PATCHING)(images=list(pixels), **TENSORS)
        return out["pixel_values"], out["image_grid_thw"]
    processor = Qwen3VLVideoProcessor(size={"shortest_edge": 4_096, "longest_edge": 25_165_824}, **PATCHING)
    # Left out, this argument warns of a coming default that is not the released rule.
    options = {"cap_pixels_per_frame": False} if hasattr(processor, "cap_pixels_per_frame") else {}
    out = processor(videos=list(pixels), do_sample_frames=False, **TENSORS, **options)
    return out["pixel_values_videos"], out["video_grid_thw"]


def _image_processor() -> type:
    """The class that the released preprocessor_config.json names; transformers 4 keeps a slower one beside it."""
    return qwen2_vl.Qwen2VLImageProcessorFast if TRANSFORMERS_4 else qwen2_vl.Qwen2VLImageProcessor


def official_inputs(prompt: str, references: Sequence, tokenizer) -> Inputs:
    """A request (uint8 arrays in our reference classes) laid out by the released rules."""
    layout = _Layout(tokenizer)
    for reference in references:
        layout.add(reference)
    layout.text(prompt)
    return layout.inputs()


class _Layout:
    def __init__(self, tokenizer):
        self.tokenizer, self.ids, self.count = tokenizer, [], {"Picture": 0, "Video": 0, "Audio": 0}
        self.patches: dict[str, list] = {"image": [], "video": []}

    def add(self, reference) -> None:
        if isinstance(reference, ImageReference):
            self.label("Picture")
            self.block("image", self.processed("image", reference.pixels))
        elif isinstance(reference, AudioReference):
            self.label("Audio")
        else:
            self.video(reference)

    def text(self, text: str) -> None:
        self.ids += self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def label(self, modality: str) -> None:
        self.count[modality] += 1
        self.text(f"<{modality} {self.count[modality]}>: ")

    def block(self, modality: str, grid: torch.Tensor) -> None:
        pads = int(grid[0, 1] * grid[0, 2]) // 4
        self.ids += [START, *[PADS[modality]] * pads, END]

    def processed(self, modality: str, pixels: np.ndarray) -> torch.Tensor:
        self.patches[modality].append(pixels)
        return official_patches(modality, [pixels])[1]

    def video(self, reference: VideoReference) -> None:
        if reference.has_audio:
            self.label("Audio")
        self.label("Video")
        frames, times = reference.frames, reference.timestamps
        if times is None:
            frames, times = frames[::12], [i / 2 for i in range(len(frames[::12]))]
        grid = self.processed("video", frames)
        times = [*times, times[-1]] if len(times) % 2 else times
        for first, second in zip(times[::2], times[1::2], strict=True):
            self.text(f"<{(first + second) / 2:.1f} seconds>")
            self.block("video", grid)

    def inputs(self) -> Inputs:
        packed = {m: official_patches(m, pixels) if pixels else (None, None) for m, pixels in self.patches.items()}
        return Inputs(torch.tensor(self.ids, dtype=torch.int64), *packed["image"], *packed["video"])
