"""The CLIP that travels on ComfyUI's sockets: its patcher manages the encoder's weights, our encoder computes.

Contract: subclasses `comfy.sd.CLIP` and answers what ComfyUI's nodes ask of one: `tokenize` (both protocols of the H3
nodes, see tokens.py), `encode_from_tokens` and `encode_from_tokens_scheduled` with hooks and schedules, `clone`,
`load_model`, LoRA through the patcher. `tokenize_each` and `encode_each` do the same for several prompts, in one pass
over the weights. Conditioning is float32 on ComfyUI's intermediate device with `pooled_output`
None and `minimax_token_tags`, as its own H3 encoder returns it; a bfloat16 result is widened without loss. What H3
cannot do (another layer, text generation, saving) is refused by name. Out of memory is tried once more with everything
offloaded; Stop passes through. opening.py makes these from checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import comfy.hooks
import comfy.model_management
import comfy.sd
import torch

from ...encoder import Conditioning, Encoder
from ...encoder.packing.kernels import Kernel, use_kernels
from .budget import Budget, Run, budget_of_request
from .caches import CacheSettings
from .kernels import kernels_for
from .patcher import H3Patcher
from .progress import HostProgress
from .readers import settle, takes_time
from .recovery import is_out_of_memory, offload, place_nothing, release
from .refusals import Refusals, refuse_layer
from .request_cache import RequestCache, result
from .schedule import stretches
from .tokens import WHO, TokenBatch, make_tokens, make_tokens_each, token_batch
from .tree import HostTree

logger = logging.getLogger(__name__)

BACKENDS = ("encoder", "official")
REPEATED = "ran out of memory, repeated with all weights offloaded"
UNPLACED = "ran out of memory while weights were loaded, computed with all weights offloaded"
_APART = " and every reference seen on its own (vision_packing per_reference), which may differ in the last bits"


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
        self.budget: Budget | None = None  # of the request at hand
        self.repeated: str | None = None
        self.run: Run | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder that the patcher manages; device selectors may have exchanged the patcher."""
        return self.patcher.model.encoder

    @property
    def label(self) -> str:
        """Format and size, for people."""
        report, recorded = self.patcher.model.report, self.patcher.model.recorded
        if recorded is not None:
            return f"cache only, {recorded.label}"
        return f"{self.encoder.weight_bytes / 1e9:.2f} GB" if report is None else report.describe()

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
            self.kernels()
        if self.backend == "official":
            self.patcher.model.official()

    # tokens

    def tokenize(self, text: str, return_word_ids: bool = False, **kwargs) -> dict[str, TokenBatch]:
        """kwargs: `images=[IMAGE, ...]` or `minimax_ref_items=[{"type", "data", "timestamps"}, ...]`."""
        return make_tokens(text, kwargs, self.encoder.tokenizer, return_word_ids)

    def tokenize_each(self, texts: Sequence[str], **kwargs) -> list[dict[str, TokenBatch]]:
        """Tokens of several prompts with the same references, which are prepared once; kwargs as for `tokenize`."""
        return make_tokens_each(texts, kwargs, self.encoder.tokenizer)

    # encoding

    def load_model(self, tokens: Mapping[str, Any] | None = None):
        """Map the weights, then let ComfyUI place them, with the room that this request needs beside them."""
        return self._load([token_batch(tokens)] if tokens else [], RequestCache(self))

    def _load(self, batches: Sequence[TokenBatch], cache: RequestCache):
        refuse_layer(self.layer_idx)
        cache.refuse_without_weights(batches)
        encoder = self.encoder
        self.budget = self.repeated = None
        if batches:
            budget_of_request(self.patcher, *batches, mapped=False).check()
        settle(self.patcher.model)
        encoder.materialise(HostProgress(show=takes_time(encoder)))
        self.patcher.size = 0  # counted anew: stored dtypes are known from here on
        if batches:
            self.budget = budget_of_request(self.patcher, *batches, cache=cache)
            logger.info("H3TE: %s", self.budget.line())
            if self.budget.is_tight:
                logger.warning("%s: %s", WHO, self.budget.warning())
        self._place(self.budget.plan.activations if self.budget else 0)
        return self.patcher

    def _place(self, needed: int) -> None:
        try:
            comfy.model_management.load_models_gpu([self.patcher], memory_required=needed)
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self.repeated = UNPLACED
        logger.warning("%s: %s.", WHO, self.repeated)
        place_nothing(self.patcher)

    def kernels(self) -> tuple[Kernel, ...]:
        """ComfyUI's own kernels that unpack this encoder's weights. Raises as `kernels_for`."""
        tree = self.patcher.model
        return kernels_for(tree.unpack, self.patcher.load_device, tree.packings)

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
        with self._loaded([batch], RequestCache(self)):
            return list(self._each_scheduled(self.patcher.forced_hooks, batch, add_dict, show_pbar))

    def encode_each(self, requests: Sequence[Mapping[str, Any]]) -> list[list[list]]:
        """The CONDITIONING of each of several tokens, in their order, to the bit what each would be alone. One pass
        over the weights serves all of them, and their memory is planned together; with a schedule of hooks, which
        change the weights on the way, and with transformers' own model it is one pass for each."""
        if self._has_schedule:
            return [self.encode_from_tokens_scheduled(tokens) for tokens in requests]
        batches = [token_batch(tokens) for tokens in requests]
        return [[self._entry(out, {})] for out in self._encoded(batches)] if batches else []

    def shares_pass(self) -> bool:
        """Whether `encode_each` serves all of its tokens in one pass."""
        return self.backend == "encoder" and not self._has_schedule

    @property
    def _has_schedule(self) -> bool:
        return self.patcher.forced_hooks is not None and self.use_clip_schedule

    def _entry(self, out: dict[str, Any], add_dict: Mapping[str, Any]) -> list:
        out = self.add_hooks_to_dict(out)
        return [out.pop("cond"), {**out, **add_dict}]

    def _encoded(self, batches: Sequence[TokenBatch]) -> list[dict[str, Any]]:
        refuse_layer(self.layer_idx)
        cache, self.run = RequestCache(self), None
        found = cache.answers(batches)
        missing = [batch for batch, out in zip(batches, found, strict=True) if out is None]
        if not missing:
            return found
        with self._loaded(missing, cache):
            made = iter(self._encode(missing, cache))
        return [next(made) if out is None else out for out in found]

    @contextmanager
    def _loaded(self, batches: Sequence[TokenBatch], cache: RequestCache) -> Iterator[None]:
        """Weights are placed for the length of a request, and given up after it when the options say so."""
        self.run = None
        try:
            self._load(batches, cache)
            yield
            resident, reading = self.patcher.loaded_size(), self.patcher.model.reading
            rest = self.patcher.model_size() - resident
            self.run = Run(self.budget, resident, rest, reading, self.repeated, self.unload)
        finally:
            if self.unload:
                release(self.patcher)

    def _each_scheduled(self, hooks, batch: TokenBatch, add_dict: Mapping[str, Any], show: bool) -> Iterator[list]:
        for stretch in stretches(self.patcher, hooks, add_dict):
            (out,) = self._encode([batch], None, show)
            cond = out.pop("cond")
            yield [cond, self.add_hooks_to_dict({**out, **stretch, **add_dict})]

    def _encode(
        self, batches: Sequence[TokenBatch], cache: RequestCache | None, show: bool = True
    ) -> list[dict[str, Any]]:
        for batch in batches:
            batch.status = None  # of an encode before
        try:
            done = self._compute(batches, show, cache=cache)
            if cache is not None:
                cache.keep(batches, done)
            return self._results(done)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # out here the error is gone, and with it the activations that its traceback held
        self.repeated = REPEATED + (_APART if self.backend == "encoder" and any(self.budget.plan.patches) else "")
        logger.warning("%s: %s.", WHO, self.repeated)
        offload(self.patcher)
        if cache is not None:
            cache.make_room()
        try:
            return self._results(self._compute(batches, show, "per_reference"))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error)
        raise RuntimeError(
            f"{WHO}: expected enough memory with all weights offloaded, got none again ({said.rstrip('.')}). "
            f"{self.budget.line()}. To make it fit, {self.budget.advice()}."
        )

    def _compute(
        self,
        batches: Sequence[TokenBatch],
        show: bool,
        vision_packing: str = "official",
        cache: RequestCache | None = None,
    ) -> list[Conditioning]:
        device, given = self.patcher.load_device, [batch.presentation for batch in batches]
        with _current(device), use_kernels(self.kernels()):
            if self.backend == "official":
                official = self.patcher.model.official()
                return [official.encode_presentation(p, progress=HostProgress(show), device=device) for p in given]
            first_try = vision_packing == "official"  # the second does with one matrix at a time
            options = {"progress": HostProgress(show), "device": device, "lend_once": first_try}
            options |= {"prefixes": None if cache is None else cache.prefixes}
            packing = vision_packing if cache is None else cache.vision_packing  # also where no prefix fits any more
            return self.encoder.encode_presentations(given, **options, vision_packing=packing)

    def _results(self, done: list[Conditioning]) -> list[dict[str, Any]]:
        """Takes `done` apart: what is copied is let go."""
        return [_taken(done.pop(0)) for _ in range(len(done))]


def _taken(done: Conditioning) -> dict[str, Any]:
    return result(done.hidden, done.token_tags)


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Kernels of several-GPU machines ask for the current device."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield
