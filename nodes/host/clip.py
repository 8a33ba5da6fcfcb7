"""The CLIP that travels on ComfyUI's sockets: its patcher manages the encoder's weights, our encoder computes.

Contract: subclasses `comfy.sd.CLIP` and answers what ComfyUI's nodes ask of one: `tokenize` (both protocols of the H3
nodes, see tokens.py), `encode_from_tokens` and `encode_from_tokens_scheduled` with hooks and schedules, `clone`,
`load_model`, LoRA through the patcher. Conditioning is float32 on ComfyUI's intermediate device with `pooled_output`
None and `minimax_token_tags`, as its own H3 encoder returns it; a bfloat16 result is widened without loss. What H3
cannot do (another layer, text generation, saving) is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import comfy.hooks
import comfy.model_management
import comfy.sd
import torch

from ...encoder import Conditioning, Encoder, load_encoder
from ...encoder.packing.kernels import Kernel, use_kernels
from ...encoder.tokens import find_tokenizer
from .kernels import kernels_for
from .leaf import HostOps
from .memory import MemoryPlan, plan_request, weights_in_use
from .patcher import H3Patcher
from .paths import bundled_tokenizer, cached_report
from .progress import HostProgress
from .readers import settle, takes_time
from .tokens import WHO, TokenBatch, make_tokens, token_batch
from .tree import HostTree

logger = logging.getLogger(__name__)


def load_clip(
    path: Path,
    load_device: torch.device,
    offload_device: torch.device,
    dtype: torch.dtype,
    reader: str = "auto",
    vision: Path | None = None,
    unpack: str = "auto",
) -> H3Clip:
    """A CLIP over a checkpoint. Headers are read, weights are not. reader, unpack: as the options node offers them;
    vision: a second file for a GGUF file. Raises as `load_encoder`, and as `kernels_for`."""
    arguments = (str(path), load_device, offload_device, dtype, reader, None if vision is None else str(vision), unpack)
    clip = H3Clip(load_patcher(*arguments))
    # newer releases make independent copies for other devices through this
    clip.patcher.cached_patcher_init = (load_patcher, arguments)
    if unpack == "comfyui":  # what cannot be had is said here, where it was asked for
        clip.kernels()
    return clip


def load_patcher(
    path: str,
    load_device: torch.device,
    offload_device: torch.device,
    dtype: torch.dtype,
    reader: str = "auto",
    vision: str | None = None,
    unpack: str = "auto",
):
    """The model patcher over a freshly opened encoder."""
    tokenizer = find_tokenizer(path) or bundled_tokenizer()
    encoder = load_encoder(path, device=load_device, dtype=dtype, ops=HostOps, tokenizer=tokenizer, vision=vision)
    report = cached_report(Path(path), None if vision is None else Path(vision))
    return make_patcher(HostTree(encoder, report, reader, unpack), load_device, offload_device)


def make_patcher(tree: HostTree, load_device: torch.device, offload_device: torch.device):
    patcher = H3Patcher(tree, load_device, offload_device)
    patcher.hook_mode = comfy.hooks.EnumHookMode.MinVram
    patcher.is_clip = True
    return patcher


class H3Clip(comfy.sd.CLIP):
    def __init__(self, patcher):
        super().__init__(no_init=True)
        self.patcher = patcher
        self.cond_stage_model = patcher.model
        self.tokenizer = self.encoder.tokenizer
        self.tokenizer_options: dict[str, Any] = {}
        self.layer_idx = None
        self.use_clip_schedule = False
        self.apply_hooks_to_conds = None
        self.plan: MemoryPlan | None = None  # of the last request

    @property
    def encoder(self) -> Encoder:
        """The encoder that the patcher manages; device selectors may have exchanged the patcher."""
        return self.patcher.model.encoder

    @property
    def label(self) -> str:
        """Format and size, for people."""
        report = self.patcher.model.report
        return f"{self.encoder.weight_bytes / 1e9:.2f} GB" if report is None else report.describe()

    def clone(self, disable_dynamic: bool = False) -> H3Clip:
        """A handle on the same weights with patches of its own. The plain patcher has nothing dynamic to disable."""
        twin = H3Clip(self.patcher.clone())
        twin.tokenizer_options = self.tokenizer_options.copy()
        twin.layer_idx = self.layer_idx
        twin.use_clip_schedule = self.use_clip_schedule
        twin.apply_hooks_to_conds = self.apply_hooks_to_conds
        return twin

    # what H3 has no use for

    def clip_layer(self, layer_idx: int | None) -> None:
        _refuse_layer(layer_idx)
        self.layer_idx = None

    def set_tokenizer_option(self, option_name: str, value: Any) -> None:
        logger.warning("%s: tokenizer option %s means nothing to MiniMax H3 and is ignored.", WHO, option_name)

    def generate(self, *args, **kwargs):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to generate text. The H3 encoder ends at layer 50 "
            "and has no language head: load a text generation model for that."
        )

    def decode(self, *args, **kwargs):
        self.generate()

    def get_sd(self):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to save the weights (CLIPSave). "
            "Keep the original checkpoint: this encoder reads it unchanged."
        )

    state_dict_for_saving = get_sd

    def get_key_patches(self):
        raise RuntimeError(
            f"{WHO}: expected a request for conditioning, got one to merge the weights (CLIPMergeSimple and its like). "
            "This encoder computes as released: remove that node; a LoRA can be applied with LoraLoader."
        )

    # tokens

    def tokenize(self, text: str, return_word_ids: bool = False, **kwargs) -> dict[str, TokenBatch]:
        """kwargs: `images=[IMAGE, ...]` or `minimax_ref_items=[{"type", "data", "timestamps"}, ...]`."""
        return make_tokens(text, kwargs, self.encoder.tokenizer, return_word_ids)

    # encoding

    def load_model(self, tokens: Mapping[str, Any] | None = None):
        """Map the weights, then let ComfyUI place them, with the room that this request needs beside them."""
        _refuse_layer(self.layer_idx)
        encoder = self.encoder
        settle(self.patcher.model)
        encoder.materialise(HostProgress(show=takes_time(encoder)))
        self.patcher.size = 0  # counted anew: stored dtypes are known from here on
        self.plan = self._plan(token_batch(tokens)) if tokens else None
        needed = self.plan.activations if self.plan else 0
        comfy.model_management.load_models_gpu([self.patcher], memory_required=needed)
        return self.patcher

    def _plan(self, batch: TokenBatch) -> MemoryPlan:
        encoder = self.encoder
        beside = weights_in_use(self.patcher.model, self.patcher.load_device, self.patcher.patches)
        return plan_request(encoder.config, batch.presentation, len(batch.sequence), encoder.dtype, beside)

    def kernels(self) -> tuple[Kernel, ...]:
        """ComfyUI's own kernels that unpack this encoder's weights. Raises as `kernels_for`."""
        tree = self.patcher.model
        return kernels_for(tree.unpack, self.patcher.load_device, tree.packings)

    def encode_from_tokens(
        self, tokens: Mapping[str, Any], return_pooled: bool | str = False, return_dict: bool = False
    ):
        """Conditioning as a dict, a (cond, None) pair, or the bare tensor [1, S, D]."""
        self.load_model(tokens)
        out = self._encode(token_batch(tokens))
        if return_dict:
            return self.add_hooks_to_dict(out)
        return (out["cond"], None) if return_pooled else out["cond"]

    def encode_from_tokens_scheduled(
        self,
        tokens: Mapping[str, Any],
        unprojected: bool = False,
        add_dict: Mapping[str, Any] | None = None,
        show_pbar: bool = True,
    ) -> list[list]:
        """CONDITIONING: one entry, or one per stretch of the hooks' schedule."""
        add_dict = add_dict or {}
        hooks = self.patcher.forced_hooks
        if hooks is None or not self.use_clip_schedule:
            out = self.encode_from_tokens(tokens, return_dict=True)
            return [[out.pop("cond"), {**out, **add_dict}]]
        self.load_model(tokens)
        return list(self._each_scheduled(hooks, token_batch(tokens), add_dict, show_pbar))

    def _each_scheduled(self, hooks, batch: TokenBatch, add_dict: Mapping[str, Any], show: bool) -> Iterator[list]:
        hooks.reset()
        self.patcher.patch_hooks(None)
        try:
            for (start, end), keyframes in hooks.get_hooks_for_clip_schedule():
                if end < add_dict.get("start_percent", end) or start > add_dict.get("end_percent", start):
                    continue
                for hook, keyframe in keyframes:
                    hook.hook_keyframe._current_keyframe = keyframe
                self.patcher.patch_hooks(hooks)
                out = self._encode(batch, show)
                cond = out.pop("cond")
                stretch = {"clip_start_percent": start, "clip_end_percent": end}
                yield [cond, self.add_hooks_to_dict({**out, **stretch, **add_dict})]
        finally:
            hooks.reset()

    def _encode(self, batch: TokenBatch, show: bool = True) -> dict[str, Any]:
        device = self.patcher.load_device
        with _current(device), use_kernels(self.kernels()):
            done = self.encoder.encode_presentation(batch.presentation, progress=HostProgress(show), device=device)
        return self._result(done)

    def _result(self, done: Conditioning) -> dict[str, Any]:
        where = comfy.model_management.intermediate_device()
        hidden = done.hidden.to(device=where, dtype=torch.float32)
        return {"cond": hidden, "pooled_output": None, "minimax_token_tags": done.token_tags}


def _refuse_layer(layer_idx: int | None) -> None:
    if layer_idx is not None:
        raise ValueError(
            f"{WHO}: expected no layer choice, got layer {layer_idx} from CLIP Set Last Layer (CLIPSetLastLayer). "
            "MiniMax H3 is conditioned on layer 50 alone: remove that node."
        )


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Kernels of several-GPU machines ask for the current device."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield
