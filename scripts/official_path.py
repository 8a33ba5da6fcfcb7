"""The official path: transformers' own Qwen3-VL classes and processors, one decoder layer in memory at a time.

Contract: `OfficialPath(checkpoint).encode(prompt, references)` -> ids [S] and `hidden_states[tap]` [S, D] in float32 or
bfloat16, from the same files that the encoder reads. Only what transformers computes is trusted here: its tokenizer,
image and video processors, vision tower, rotary embedding and decoder layers. The presentation is written out once
more, from the contract, so that it checks ours. Peak memory: the vision tower or one layer, plus activations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pack import h3te_module
from safetensors import safe_open

IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END = 151655, 151656, 151652, 151653
IMAGE_PIXELS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
VIDEO_PIXELS = {"shortest_edge": 4_096, "longest_edge": 25_165_824}


@dataclass
class Request:
    """What the official model is called with: ids [S], and per modality patches [N, 1536] with grids [n, 3]."""

    ids: torch.Tensor
    patches: dict[str, torch.Tensor] = field(default_factory=dict)
    grids: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def pictures(self) -> dict[str, torch.Tensor]:
        """Patches and grids by the argument names of transformers' forward, which are also those of `encode_ids`."""
        suffixes = {"image": "", "video": "_videos"}
        pixels = {f"pixel_values{suffixes[modality]}": patches for modality, patches in self.patches.items()}
        return pixels | {f"{modality}_grid_thw": grid for modality, grid in self.grids.items()}

    @property
    def token_types(self) -> torch.Tensor:
        """int32 [S]: 1 for image pads, 2 for video pads, 0 for everything else."""
        return (self.ids == IMAGE_PAD).int() + 2 * (self.ids == VIDEO_PAD).int()


@dataclass(frozen=True)
class OfficialResult:
    ids: torch.Tensor
    hidden: torch.Tensor


class OfficialPath:
    """checkpoint: what `load_encoder` opens. tokenizer: a folder with vocab.json, merges.txt, tokenizer_config.json."""

    def __init__(self, checkpoint: Path, *, tap_layer: int, dtype: torch.dtype, tokenizer: Path):
        from transformers import AutoTokenizer
        from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLModel

        catalog = h3te_module("encoder.checkpoint.catalog")
        self.entries = catalog.open_catalog(checkpoint, tap_layer).entries
        self.tap_layer, self.dtype = tap_layer, dtype
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        config = Qwen3VLConfig.from_dict(_config_dict(checkpoint, tap_layer))
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            self.model = Qwen3VLModel(config).eval().requires_grad_(False)

    def encode(
        self, prompt: str, references: Sequence = (), progress: Callable[[str], None] | None = None
    ) -> OfficialResult:
        """References are the encoder's own ImageReference, VideoReference and AudioReference, uint8 pixels."""
        request = self.prepare(prompt, references)
        return OfficialResult(request.ids, self.hidden(request, progress or (lambda what: None)))

    def prepare(self, prompt: str, references: Sequence) -> Request:
        """Ids, patches and grids of a request, by transformers' tokenizer and processors."""
        return _Presenter(self.tokenizer).present(prompt, references)

    @torch.no_grad()
    def hidden(self, request: Request, progress: Callable[[str], None]) -> torch.Tensor:
        """`hidden_states[tap]` [S, D] of a prepared request."""
        seen = self._see(request, progress)
        embeddings = self.read("model.language_model.embed_tokens.weight")[request.ids].to(self.dtype)[None]
        where = {m: (request.ids == pad)[None] for m, pad in (("image", IMAGE_PAD), ("video", VIDEO_PAD))}
        for modality, (merged, _) in seen.items():
            mask = where[modality][..., None].expand_as(embeddings)
            embeddings = embeddings.masked_scatter(mask, merged.to(self.dtype))
        visual = where["image"] | where["video"]
        deepstack = _joined_deepstack(seen, where, visual) if seen else []
        return self._decode(embeddings, self._positions(request), visual, deepstack, progress)[0]

    def _see(self, request: Request, progress: Callable[[str], None]) -> dict[str, tuple]:
        if not request.patches:
            return {}
        tower = self.model.visual
        self.fill(tower, "model.visual.")
        renew_rotary(tower)
        seen = {}
        for modality, patches in request.patches.items():
            progress(f"vision tower, {modality}s")
            out = tower(patches.to(self.dtype), grid_thw=request.grids[modality])
            seen[modality] = (out.pooler_output, out.deepstack_features)
        tower.to("meta")
        return seen

    def _decode(self, hidden, positions, visual, deepstack, progress) -> torch.Tensor:
        decoder = self.model.language_model
        renew_rotary(decoder)
        rotary = decoder.rotary_emb(hidden, positions)
        for i in range(self.tap_layer):
            layer = decoder.layers[i]
            self.fill(layer, f"model.language_model.layers.{i}.")
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
            layer.to("meta")
            if i < len(deepstack):
                hidden = decoder._deepstack_process(hidden, visual, deepstack[i])
            progress(f"layer {i + 1} of {self.tap_layer}")
        return hidden

    def _positions(self, request: Request) -> torch.Tensor:
        positions, _ = self.model.get_rope_index(
            request.ids[None],
            mm_token_type_ids=request.token_types[None],
            image_grid_thw=request.grids.get("image"),
            video_grid_thw=request.grids.get("video"),
        )
        return positions

    def read(self, name: str) -> torch.Tensor:
        """A tensor by released name, in stored dtype, as a view of its mapped file."""
        entry = self.entries[name]
        with safe_open(entry.file, framework="pt") as file:
            return file.get_tensor(entry.stored_name)

    def fill(self, module: torch.nn.Module, prefix: str) -> None:
        """Give a module its weights in compute dtype; `module.to("meta")` drops them."""
        names = [name for name, _ in module.named_parameters()]
        state = {name: self.read(prefix + name).to(self.dtype) for name in names}
        module.load_state_dict(state, strict=True, assign=True)


class _Presenter:
    """The contract's presentation, through transformers' tokenizer and processors."""

    def __init__(self, tokenizer):
        from transformers import Qwen2VLImageProcessor
        from transformers.models.qwen3_vl import Qwen3VLVideoProcessor

        self.tokenizer = tokenizer
        layout = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
        look = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        self.images = Qwen2VLImageProcessor(size=IMAGE_PIXELS, **layout, **look)
        self.videos = Qwen3VLVideoProcessor(size=VIDEO_PIXELS, **layout, **look)

    def present(self, prompt: str, references: Sequence) -> Request:
        self.ids, self.seen, numbers = [], {"image": [], "video": []}, {"Picture": 0, "Video": 0, "Audio": 0}

        def label(kind: str) -> None:
            numbers[kind] += 1
            self.text(f"<{kind} {numbers[kind]}>: ")

        for reference in references:
            kind = type(reference).__name__
            if kind == "ImageReference":
                label("Picture")
                self.image(torch.as_tensor(reference.pixels))
            elif kind == "AudioReference":
                label("Audio")
            else:
                if reference.has_audio:
                    label("Audio")
                label("Video")
                self.video(torch.as_tensor(reference.frames)[::12])
        self.text(prompt)
        return self.request()

    def text(self, text: str) -> None:
        self.ids += self.tokenizer.encode(text, add_special_tokens=False)

    def block(self, pad: int, grid: torch.Tensor) -> None:
        self.ids += [VISION_START, *[pad] * (int(grid[1] * grid[2]) // 4), VISION_END]

    def image(self, pixels: torch.Tensor) -> None:
        out = self.images(images=[pixels.permute(2, 0, 1)], return_tensors="pt")
        self.seen["image"].append((out["pixel_values"], out["image_grid_thw"]))
        self.block(IMAGE_PAD, out["image_grid_thw"][0])

    def video(self, frames: torch.Tensor) -> None:
        options = {"do_sample_frames": False, "return_tensors": "pt", "cap_pixels_per_frame": False}
        out = self.videos(videos=[frames.permute(0, 3, 1, 2)], **options)
        grid = out["video_grid_thw"][0]
        self.seen["video"].append((out["pixel_values_videos"], out["video_grid_thw"]))
        times = [i / 2 for i in range(len(frames))]
        times += times[-1:] * (len(times) % 2)
        for first, second in itertools.islice(zip(times[::2], times[1::2], strict=True), int(grid[0])):
            self.text(f"<{(first + second) / 2:.1f} seconds>")
            self.block(VIDEO_PAD, grid)

    def request(self) -> Request:
        request = Request(torch.tensor(self.ids))
        for modality, parts in self.seen.items():
            if parts:
                request.patches[modality] = torch.cat([patches for patches, _ in parts])
                request.grids[modality] = torch.cat([grid for _, grid in parts])
        return request


def _config_dict(checkpoint: Path, tap_layer: int) -> dict:
    catalog = h3te_module("encoder.checkpoint.catalog").open_catalog(checkpoint, tap_layer)
    if catalog.config is not None:
        config = {**catalog.config}
    else:
        config = _config_from_shapes(h3te_module("encoder").EncoderConfig.from_shapes(catalog.shapes))
    config["text_config"] = {**config["text_config"], "num_hidden_layers": tap_layer}
    return config


def _config_from_shapes(config) -> dict:
    text, vision = {**vars(config.text)}, {**vars(config.vision)}
    section = list(text.pop("mrope_section"))
    text["rope_scaling"] = {"mrope_interleaved": True, "mrope_section": section, "rope_type": "default"}
    vision["deepstack_visual_indexes"] = list(vision["deepstack_visual_indexes"])
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}


def renew_rotary(module: torch.nn.Module) -> None:
    """Build the rotary tables anew in float32: they are in no checkpoint, and the model was built on `meta`."""
    for name, child in list(module.named_children()):
        if name in ("rotary_emb", "rotary_pos_emb"):
            setattr(module, name, type(child)(child.config))


def _joined_deepstack(seen: dict, where: dict, visual: torch.Tensor) -> list[torch.Tensor]:
    joined = []
    for level in range(len(next(iter(seen.values()))[1])):
        features = {m: deepstack[level] for m, (_, deepstack) in seen.items()}
        table = next(iter(features.values())).new_zeros(int(visual.sum()), next(iter(features.values())).shape[-1])
        for modality, feature in features.items():
            table[where[modality][visual]] = feature
        joined.append(table)
    return joined
