"""What a CLIP asks before it encodes, and gives after: finished conditioning by content, and prefixes.

Contract: `RequestCache(patcher, backend, settings)` for one request or several of one call. `answers(batches)` never
touches a weight; `prefixes` goes into the encoder; `keep(batches, done)` after a pass that was not repeated. Each batch
is told what became of it (`batch.status`). Nothing is kept of an encoder whose content is not known, or whose weights
hooks swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import comfy.model_management
import torch

from ...encoder import Conditioning
from ...encoder.cache.conditioning_store import StoredConditioning
from ...encoder.cache.expected import expected_prefix
from ...encoder.cache.identity import EncoderIdentity, request_key
from ...encoder.cache.identity_records import config_values
from ...encoder.cache.prefixes import PrefixUse, kept_bytes, pass_identity
from . import caches
from .cache_status import CacheStatus
from .caches import CacheSettings
from .lora_digest import lora_digest
from .provenance import facts_of
from .tokens import TokenBatch

MOST_TEXT = 100_000  # characters of a prompt that are stored for people; what is known again is the key


class RequestCache:
    """backend: of options.BACKENDS; settings: None to keep nothing."""

    def __init__(self, patcher, backend: str, settings: CacheSettings | None):
        self._patcher, self._backend, self._settings = patcher, backend, settings
        self.identity = identity_of(patcher, backend, settings)
        if self._settings is not None:
            caches.use(self._settings)

    @property
    def _recorded(self) -> bool:
        return self._patcher.model.recorded is not None

    @property
    def _keeps(self) -> bool:
        return self.identity is not None and (self._recorded or self._settings.kept != "off")

    @property
    def vision_packing(self) -> str:
        return "per_reference" if self.reuses_prefixes else "official"

    @property
    def reuses_prefixes(self) -> bool:
        return self.identity is not None and self._backend == "encoder" and self._settings.reuses_prefixes

    @property
    def prefixes(self) -> PrefixUse | None:
        """Of this process."""
        return PrefixUse(caches.prefix_store(), self.identity.key) if self.reuses_prefixes else None

    def answers(self, batches: Sequence[TokenBatch]) -> list[dict[str, Any] | None]:
        """The finished result of each, None for what has to be encoded."""
        return [self._answer(batch) for batch in batches]

    def _answer(self, batch: TokenBatch) -> dict[str, Any] | None:
        batch.status = None
        if not self._keeps:
            return None
        store, key, on_disk = caches.conditioning_store(), self._key(batch), self._settings.on_disk
        found = store.get(key, disk=on_disk or self._recorded)
        if found is None or not torch.equal(found[0].token_ids, batch.sequence.ids):
            return None
        stored, where = found
        if where == "ram" and on_disk and not self._recorded:  # kept in memory alone at the time
            store.put_on_disk(key, stored, self.identity, config_values(self._patcher.model.encoder.config))
        batch.status = CacheStatus(where, len(batch.sequence), len(batch.sequence))
        return result(stored.hidden[None], stored.token_tags)

    def expected(self, read: Any) -> CacheStatus:
        """What `answers`, or else a pass, would make of a request. read: has `sequence` and `presentation`, whose
        patches may lack values. Prefixes of a worker are its own, and not told."""
        encoder, count = self._patcher.model.encoder, len(read.sequence)
        disk = self._settings.on_disk or self._recorded
        place = caches.conditioning_store().holds(self._key(read), disk=disk) if self._keeps else None
        if place is not None or self.prefixes is None or encoder.model is None:
            return CacheStatus(place, count, count if place else 0)
        use, merge = self.prefixes, encoder.config.vision.spatial_merge_size if encoder.config.vision else 1
        identity = pass_identity(use, encoder.dtype, len(encoder.model.language_model.layers))
        return CacheStatus(
            None, count, expected_prefix(use.store, identity, read.sequence.ids, read.presentation, merge)
        )

    def kept_bytes(self, batches: Sequence[TokenBatch]) -> int:
        """What a CPU holds of prefixes by the end of a pass, beside its activations; elsewhere it is other memory."""
        prefixes, encoder = self.prefixes, self._patcher.model.encoder
        if prefixes is None or self._patcher.load_device.type != "cpu":
            return 0
        tokens = sum(len(batch.sequence) for batch in batches)
        return min(kept_bytes(encoder.config.text, tokens, encoder.dtype, encoder.tap_layer), prefixes.store.budget())

    def make_room(self) -> None:
        """After memory ran out: prefixes are given back where they lie in that very memory."""
        if self._patcher.load_device.type == "cpu":
            caches.clear(caches.PREFIXES)

    def keep(self, batches: Sequence[TokenBatch], done: Sequence[Conditioning]) -> None:
        if self.identity is None:
            return
        for batch, made in zip(batches, done, strict=True):
            batch.status = CacheStatus(None, len(batch.sequence), made.reused, made.seen_before)
            if self._keeps:
                self._store(batch, made)

    def _store(self, batch: TokenBatch, made: Conditioning) -> None:
        told = facts_of(batch, self.identity)
        told |= {name: text[:MOST_TEXT] for name, text in told.items() if isinstance(text, str)}
        stored = StoredConditioning(made.hidden[0], made.token_tags, made.token_ids, told)
        config = config_values(self._patcher.model.encoder.config)
        caches.conditioning_store().put(self._key(batch), stored, self.identity, config, disk=self._settings.on_disk)

    def _key(self, batch: TokenBatch) -> str:
        return request_key(self.identity, batch.sequence.ids, batch.presentation)


def identity_of(patcher, backend: str, settings: CacheSettings | None) -> EncoderIdentity | None:
    """Of the weights with their LoRAs, and of how they compute."""
    if settings is None:
        return None
    known, lora = patcher.model.identity(), lora_digest(patcher)
    if known is None or lora is None:
        return None
    if patcher.model.recorded is not None:
        return known if not lora else replace(known, lora=lora)
    reuses = backend == "encoder" and settings.reuses_prefixes
    packing = "per_reference" if reuses else "official"
    remote = patcher.model.remote
    return replace(known, vision_packing=packing, backend=remote.backend if remote else backend, lora=lora)


def result(hidden: torch.Tensor, tags: torch.Tensor) -> dict[str, Any]:
    """As ComfyUI's own H3 encoder returns it, in tensors that nobody else holds. hidden [1, S, D]."""
    where = comfy.model_management.intermediate_device()
    cond = hidden.to(device=where, dtype=torch.float32, copy=True)
    return {"cond": cond, "pooled_output": None, "minimax_token_tags": tags.clone()}


def results(done: list[Conditioning]) -> list[dict[str, Any]]:
    """Takes `done` apart: what is copied is let go."""
    return [_taken(done.pop(0)) for _ in range(len(done))]


def _taken(done: Conditioning) -> dict[str, Any]:
    return result(done.hidden, done.token_tags)
