"""The CLIP that travels on ComfyUI's sockets: what its nodes ask of one, over an encoder that is computed elsewhere.

Contract: subclasses `comfy.sd.CLIP` and answers what ComfyUI's nodes ask of one: `tokenize` (both protocols of the H3
nodes, see tokens.py), `encode_from_tokens` and `encode_from_tokens_scheduled` with hooks and schedules, `clone`,
`load_model`, LoRA through the patcher. `tokenize_each` and `encode_each` do the same for several prompts. Conditioning
is float32 on ComfyUI's intermediate device with `pooled_output` None and `minimax_token_tags`, as its own H3 encoder
returns it; a bfloat16 result is widened without loss. What H3 cannot do (another layer, text generation, saving) is
refused by name. Who computes, with which memory, is computing.py's; opening.py makes these from checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import comfy.hooks
import comfy.sd
import torch

from ...encoder import Encoder
from . import node_text
from .caches import CacheSettings
from .computing import Computing, Run, computing
from .local_computing import kernels_of
from .patcher import H3Patcher
from .refusals import Refusals, refuse_layer
from .request_cache import RequestCache
from .schedule import count_stretches, stretches
from .tokens import TokenBatch, make_tokens, make_tokens_each, token_batch
from .tree import HostTree
from .turns import Turns, turns

BACKENDS = ("encoder", "official")


def make_patcher(tree: HostTree, load_device: torch.device, offload_device: torch.device):
    patcher = H3Patcher(tree, load_device, offload_device)
    patcher.hook_mode = comfy.hooks.EnumHookMode.MinVram
    patcher.is_clip = True
    return patcher


class H3Clip(Refusals, comfy.sd.CLIP):
    """backend: one of BACKENDS. unload: give up the weights after every request. caches: what is kept of requests, None
    for nothing."""

    def __init__(self, patcher, backend: str = "encoder", unload: bool = False, caches: CacheSettings | None = None):
        super().__init__(no_init=True)
        self.backend, self.unload, self.caches = backend, unload, caches
        self.patcher = patcher
        self.cond_stage_model = patcher.model
        self.tokenizer = self.encoder.tokenizer
        self.tokenizer_options: dict[str, Any] = {}
        self.layer_idx = None
        self.use_clip_schedule = False
        self.apply_hooks_to_conds = None
        self.run: Run | None = None  # of the request before, None where nothing was computed

    @property
    def encoder(self) -> Encoder:
        """The encoder that the patcher manages; device selectors may have exchanged the patcher."""
        return self.patcher.model.encoder

    @property
    def label(self) -> str:
        """Format and size, for people."""
        return self.patcher.model.label

    def clone(self, disable_dynamic: bool = False) -> H3Clip:
        """A handle on the same weights with patches of its own. The plain patcher has nothing dynamic to disable."""
        twin = H3Clip(self.patcher.clone(), self.backend, self.unload, self.caches)
        twin.tokenizer_options = self.tokenizer_options.copy()
        twin.layer_idx = self.layer_idx
        twin.use_clip_schedule = self.use_clip_schedule
        twin.apply_hooks_to_conds = self.apply_hooks_to_conds
        return twin

    def prepare(self) -> None:
        """What was asked for and cannot be had is said at the loader. Raises as `kernels_for` and `official_model`."""
        if self.patcher.model.unpack == "comfyui":
            kernels_of(self.patcher)
        if self.backend == "official":
            self.patcher.model.official()

    def cache(self) -> RequestCache:
        """For one call."""
        return RequestCache(self.patcher, self.backend, self.caches)

    # tokens

    def tokenize(self, text: str, return_word_ids: bool = False, **kwargs) -> dict[str, TokenBatch]:
        """kwargs: `images=[IMAGE, ...]` or `minimax_ref_items=[{"type", "data", "timestamps"}, ...]`."""
        return make_tokens(text, kwargs, self.encoder.tokenizer, return_word_ids)

    def tokenize_each(self, texts: Sequence[str], **kwargs) -> list[dict[str, TokenBatch]]:
        """Tokens of several prompts with the same references, which are prepared once; kwargs as for `tokenize`."""
        return make_tokens_each(texts, kwargs, self.encoder.tokenizer)

    # encoding

    def load_model(self, tokens: Mapping[str, Any] | None = None):
        """Everything ready for `tokens`, with the room that this request needs beside the weights."""
        refuse_layer(self.layer_idx)
        self._computing(self.cache()).load([token_batch(tokens)] if tokens else [])
        return self.patcher

    def encode_from_tokens(
        self, tokens: Mapping[str, Any], return_pooled: bool | str = False, return_dict: bool = False
    ):
        """Conditioning as a dict, a (cond, None) pair, or the bare tensor [1, S, D]."""
        (out,) = self._encoded([token_batch(tokens)])
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
        add_dict, batch = add_dict or {}, token_batch(tokens)
        if not self._has_schedule:
            return [self._entry(out, add_dict) for out in self._encoded([batch])]
        refuse_layer(self.layer_idx)
        count = count_stretches(self.patcher.forced_hooks, add_dict)
        with turns(count, "stretch") as turn, self._loaded([batch], self.cache()) as work:
            return list(self._each_scheduled(work, turn, batch, add_dict, show_pbar))

    def encode_each(self, requests: Sequence[Mapping[str, Any]]) -> list[list[list]]:
        """The CONDITIONING of each of several tokens, in their order, to the bit what each would be alone. One pass
        over the weights serves all of them, and their memory is planned together; with a schedule of hooks, which
        change the weights on the way, with transformers' own model and with a worker it is one pass for each."""
        if self._has_schedule:
            return [self.encode_from_tokens_scheduled(tokens) for tokens in requests]
        batches = [token_batch(tokens) for tokens in requests]
        return [[self._entry(out, {})] for out in self._encoded(batches)] if batches else []

    def shares_pass(self) -> bool:
        """Whether `encode_each` serves all of its tokens in one pass."""
        return self.backend == "encoder" and self.patcher.model.remote is None and not self._has_schedule

    @property
    def _has_schedule(self) -> bool:
        return self.patcher.forced_hooks is not None and self.use_clip_schedule

    def _entry(self, out: dict[str, Any], add_dict: Mapping[str, Any]) -> list:
        out = self.add_hooks_to_dict(out)
        return [out.pop("cond"), {**out, **add_dict}]

    def _encoded(self, batches: Sequence[TokenBatch]) -> list[dict[str, Any]]:
        refuse_layer(self.layer_idx)
        cache, self.run = self.cache(), None
        found = cache.answers(batches)
        missing = [batch for batch, out in zip(batches, found, strict=True) if out is None]
        if not missing:
            node_text.say("answered from the cache: no weight was read", at_once=True)
            return found
        with self._loaded(missing, cache) as work:
            made = iter(work.encode(missing, cache))
        return [next(made) if out is None else out for out in found]

    def _computing(self, cache: RequestCache) -> Computing:
        return computing(self.patcher, self.backend, self.unload, cache)

    @contextmanager
    def _loaded(self, batches: Sequence[TokenBatch], cache: RequestCache) -> Iterator[Computing]:
        self.run, work = None, self._computing(cache)
        with work.loaded(batches):
            yield work
        self.run = work.run

    def _each_scheduled(
        self, work: Computing, turn: Turns, batch: TokenBatch, add_dict: Mapping[str, Any], show: bool
    ) -> Iterator[list]:
        for stretch in turn.over(stretches(self.patcher, self.patcher.forced_hooks, add_dict)):
            (out,) = work.encode([batch], None, show)
            cond = out.pop("cond")
            yield [cond, self.add_hooks_to_dict({**out, **stretch, **add_dict})]
