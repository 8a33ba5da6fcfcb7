"""The encoder: prompt and references -> `hidden_states[tap_layer]`, and the token-level contract below it.

Contract: `encode` for people, `encode_ids` for programs, weights by `load_weights` or from a checkpoint at first use.
Nothing here knows a host: the compute device is an argument, weights live wherever their leaves are. With `parallel` it
is one rank of several: every rank is given every request, and ends with the whole hidden states.
Precision: activations in `dtype` (bfloat16 as released), weights as stored; never float16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .cache.prefixes import PrefixUse
from .conditioning import Conditioning, EncodedRequest
from .config import EncoderConfig
from .decoder import Decoder
from .diagnosis import is_finite, non_finite_error
from .encode_pass import EncodePass, Request
from .layers import Layers
from .leaf import PlainOps
from .parallel.cuts import Cuts, local_config
from .parallel.group import ALONE, TensorParallel
from .pixels import Patches
from .presentation import Presentation, present
from .progress import Progress
from .prompt_notes import log_notes, prompt_notes, prompt_of
from .reusing_pass import ReusingPass
from .tap import SELECTED_LAYER, check_dtype, check_tap
from .token_inputs import check_ids, pair_patches
from .tokens import H3Tokenizer, tokenize
from .vision import VisionTower
from .weights import WeightSlots


class ReleasedTree(nn.Module):
    """`model.language_model` and `model.visual`: parameter names are the released ones."""

    def __init__(self, config: EncoderConfig, layers: Layers, tap_layer: int):
        super().__init__()
        self.language_model = Decoder(config.text, layers, tap_layer)
        self.visual = VisionTower(config.vision, layers) if config.vision is not None else None


class Encoder(nn.Module):
    """Build with `build_encoder` (no weights) or `load_encoder` (weights from a checkpoint at first use).

    config: of the whole model; local_config: of what this rank of `parallel` computes. A process outside the group has
    neither modules nor weights.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        tap_layer: int = SELECTED_LAYER,
        ops: Any = None,
        tokenizer: H3Tokenizer | None = None,
        parallel: TensorParallel | None = None,
    ):
        super().__init__()
        check_dtype(dtype)
        check_tap(tap_layer, config.text.num_hidden_layers)
        ops = ops or PlainOps()
        self.parallel = parallel = parallel or ALONE
        self.config, self.local_config = config, local_config(config, parallel)
        self.dtype, self.tap_layer = dtype, tap_layer
        self.device = torch.device(device)
        self.tokenizer = tokenizer
        self.source = None  # a checkpoint reader: weights come from it at first use
        layers = Layers(ops, dtype, parallel)
        self.model = ReleasedTree(self.local_config, layers, tap_layer) if parallel.is_member else None
        decoder = self.model.language_model if parallel.is_member else None
        self.slots = WeightSlots(self, decoder, ops.Leaf, Cuts(parallel))

    @property
    def tp_size(self) -> int:
        """Ranks that share this encoder; 0 outside their group."""
        return self.parallel.size

    # weights

    def load_weights(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take a whole checkpoint of (released name, tensor) in one call; returns the set of loaded parameter names.

        lm_head, the final norm and layers at or above the tap are skipped. Unknown, missing and misshapen tensors are
        ValueErrors that list them all, and then nothing has changed. Tensors are used as they are, not copied; a rank
        of several copies its own part of those that are cut, and outside the group nothing is taken.
        """
        return self.slots.load(pairs)

    def materialise(self, progress: Progress | None = None) -> None:
        """Make sure that weights are in memory or mapped, where they rest. progress counts bytes."""
        missing = self.slots.missing()
        if not missing:
            return
        if self.source is None:
            raise RuntimeError(
                f"Encoder: expected loaded weights, got none for {len(missing)} tensors (first: {missing[0]}). "
                "Call load_weights with the checkpoint, or build the encoder with load_encoder."
            )
        self.source.fill(self.slots, missing, progress)

    def load_to_device(self) -> None:
        """Load the weights and move them to the compute device."""
        self.materialise()
        self.to(self.device)

    def offload_to_cpu(self) -> None:
        """Move the weights back to where they rest on the CPU (the mapped checkpoint, when there is one)."""
        if self.is_loaded:
            self.to("cpu")

    @property
    def is_loaded(self) -> bool:
        """True once the weights are in memory or mapped, on any device; False before first use."""
        return self.parallel.is_member and not self.slots.missing()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all needed weights as stored, the embedding table included; of several ranks, of this one's part."""
        return self.slots.total_bytes()

    # encoding

    def encode(
        self,
        prompt: str,
        references: Sequence[Any] = (),
        *,
        progress: Progress | None = None,
        vision_packing: str = "official",
        prefixes: PrefixUse | None = None,
    ) -> Conditioning:
        """Encode a prompt with references (ImageReference, VideoReference, AudioReference) in request order.

        vision_packing: "official", one call of the vision tower per modality, or "per_reference", one per reference,
        which needs less memory at once and differs in the last bits. prefixes: reuse what earlier encodes kept there,
        and keep this one; references are then always seen one by one. `progress(done, total, what)` is called after
        each vision block and decoder layer that is computed; raising in it stops the encode and leaves the encoder and
        the store usable. Raises ValueError for bad input, RuntimeError without tokenizer or weights.
        """
        options = {"progress": progress, "vision_packing": vision_packing, "prefixes": prefixes}
        return self.encode_presentation(present(prompt, references), **options)

    def encode_presentation(
        self,
        presentation: Presentation,
        *,
        progress: Progress | None = None,
        device: torch.device | None = None,
        vision_packing: str = "official",
        prefixes: PrefixUse | None = None,
    ) -> Conditioning:
        """As `encode`, from a finished presentation; `device`: compute there instead of on `self.device`."""
        options = {"progress": progress, "device": device, "vision_packing": vision_packing, "prefixes": prefixes}
        return self.encode_presentations([presentation], **options)[0]

    def encode_presentations(
        self,
        presentations: Sequence[Presentation],
        *,
        progress: Progress | None = None,
        device: torch.device | None = None,
        vision_packing: str = "official",
        lend_once: bool = True,
        prefixes: PrefixUse | None = None,
    ) -> list[Conditioning]:
        """Several requests in one pass over the weights; each gets to the bit what it would get alone. Presentations
        that share their patches (`present_each`) are seen once. lend_once: each weight is borrowed and unpacked once
        for all, and a layer's matrices are in memory together; else for each request, one matrix at a time. With
        `prefixes` what requests begin with alike is computed once, and bits are those of other row counts."""
        tokenizer = self._needed_tokenizer()
        sequences = [tokenize(presentation, tokenizer) for presentation in presentations]
        requests = [
            Request(sequence.ids, {"image": presentation.image, "video": presentation.video})
            for presentation, sequence in zip(presentations, sequences, strict=True)
        ]
        notes = [prompt_notes(presentation) for presentation in presentations]
        for presentation, noted in zip(presentations, notes, strict=True):
            log_notes(noted, prompt_of(presentation))
        one_pass = self._pass(requests, device or self.device, vision_packing, lend_once, prefixes)
        counts = zip(one_pass.reused, one_pass.seen_before, strict=True)
        hidden = self._hidden(one_pass, progress)
        each = zip(hidden, sequences, presentations, notes, counts, strict=True)
        return [
            Conditioning(states[None], sequence.tags, sequence.ids, sequence, presentation, noted, *counted)
            for states, sequence, presentation, noted, counted in each
        ]

    def encode_ids(
        self,
        input_ids: torch.Tensor,
        *,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        progress: Progress | None = None,
        prefixes: PrefixUse | None = None,
    ) -> torch.Tensor:
        """ids int64 [S], patches [N, 1536] and grids int64 [n, 3] -> hidden states [S, D] in compute dtype.

        Pixels and grids come together; pads must equal features. Raises ValueError with both numbers otherwise.
        """
        pictures = (pixel_values, image_grid_thw, pixel_values_videos, video_grid_thw)
        request = self.checked_request(input_ids, *pictures)
        return self.encode_request(request, progress=progress, prefixes=prefixes).hidden

    forward = encode_ids

    def checked_request(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
    ) -> Request:
        """What `encode_ids` takes, for `encode_request`. Computes nothing; raises ValueError as `encode_ids` does."""
        check_ids(input_ids, self.config.text.vocab_size)
        patches = {
            "image": self._paired(pixel_values, image_grid_thw, "pixel_values", "image_grid_thw"),
            "video": self._paired(pixel_values_videos, video_grid_thw, "pixel_values_videos", "video_grid_thw"),
        }
        request = Request(input_ids.cpu(), patches)
        self._pass([request], self.device)
        return request

    def encode_request(
        self,
        request: Request,
        *,
        progress: Progress | None = None,
        vision_packing: str = "official",
        prefixes: PrefixUse | None = None,
    ) -> EncodedRequest:
        """Hidden states of ids and patches, and what was not computed for them; options as `encode` has them."""
        one_pass = self._pass([request], self.device, vision_packing, prefixes=prefixes)
        (hidden,) = self._hidden(one_pass, progress)
        return EncodedRequest(hidden, one_pass.reused[0], one_pass.seen_before[0])

    def _paired(
        self, pixels: torch.Tensor | None, grids: torch.Tensor | None, pixels_name: str, grids_name: str
    ) -> Patches | None:
        if pixels is None and grids is None:
            return None
        self._check_vision()
        vision = self.config.vision
        return pair_patches(pixels, grids, pixels_name, grids_name, vision.patch_width, vision.spatial_merge_size)

    def _pass(
        self,
        requests: Sequence[Request],
        device: torch.device | str,
        vision_packing: str = "official",
        lend_once: bool = True,
        prefixes: PrefixUse | None = None,
    ) -> EncodePass:
        """Checks the requests; nothing is computed yet."""
        self._check_member()
        if any(request.sees for request in requests):
            self._check_vision()
        given = (self.model, self.local_config, requests, torch.device(device), self.dtype)
        if prefixes is None or not prefixes.store.is_on:
            return EncodePass(*given, vision_packing, lend_once)
        if self.tp_size > 1:  # keys and values of this rank's heads serve no other
            prefixes = replace(prefixes, identity=f"{prefixes.identity} {self.parallel.place}")
        return ReusingPass(*given, prefixes, lend_once)

    @torch.no_grad()
    def _hidden(self, one_pass: EncodePass, progress: Progress | None) -> list[torch.Tensor]:
        if one_pass.needs_weights:
            self.materialise()
        hidden = one_pass.run(progress)
        if self.parallel.any(not all(is_finite(states) for states in hidden), one_pass.device):
            computed = self.dtype, one_pass.device, self.parallel
            raise non_finite_error(self.model, lambda: one_pass.run(progress), *computed)
        one_pass.keep()
        return hidden

    def _check_member(self) -> None:
        if not self.parallel.is_member:
            raise RuntimeError(
                "Encoder: expected a rank of the group that shares this encoder, got a process outside it, which holds "
                "no weights. Encode on the ranks of the group."
            )

    def _check_vision(self) -> None:
        if self.config.vision is None:
            raise ValueError(
                "Encoder: expected a text-only request, got pictures: this checkpoint has no vision tower (visual.*). "
                + ((self.source and self.source.catalog.vision_hint) or _USE_WHOLE)
            )

    def _needed_tokenizer(self) -> H3Tokenizer:
        if self.tokenizer is None:
            raise RuntimeError(
                "Encoder: expected a tokenizer to encode text, got none. Put vocab.json and merges.txt beside the "
                "checkpoint, or pass tokenizer=<folder that holds them>."
            )
        return self.tokenizer


_USE_WHOLE = (
    "Load a file that holds it, such as qwen3vl_32b_minimax_h3_bf16.safetensors or the official text_encoder folder."
)
