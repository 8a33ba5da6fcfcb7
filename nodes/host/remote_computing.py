"""Computing by a worker, in another process or on another machine.

Contract: a `Computing` (computing.py). Tokens and patches are made here, in the worker's dtype, so that its states are
to the bit those of a local encoder; they come back with tags, which must be our own. What would have no effect there
(LoRA, hooks that swap weights, patches that run code) is refused. Stop cancels the job and leaves at once. What the
worker says of the job is shown as if it were done here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...encoder import Conditioning
from ...encoder.diagnosis import is_finite
from ...encoder.parallel.protocol import EncodeReply, EncodeRequest
from ...encoder.pixels import Patches
from ...encoder.progress import DECODER, LOADING, VISION
from ...encoder.prompt_notes import log_notes, prompt_notes, prompt_of
from .lora_digest import runs_code
from .patcher import refuse_remote
from .progress import HostProgress
from .remote_encoder import RemoteEncoder
from .request_cache import RequestCache, results
from .tokens import WHO, TokenBatch
from .turns import Turns, turns

logger = logging.getLogger(__name__)

UNLOAD_SECONDS = 2.0  # more is for a worker that has other work


@dataclass(frozen=True)
class RemoteRun:
    """where: worker and ranks; computed: seconds of it; waited: what it took beside that, to send, queue, load and
    receive; unloaded: what became of the wish to give up its weights, None without one; seconds: of each part."""

    where: str
    computed: float
    waited: float
    unloaded: str | None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        times = f"{self.computed:.1f} s of computing, {self.waited:.1f} s of sending and waiting"
        return [f"encoded by {self.where}", times, *([self.unloaded] if self.unloaded else [])]

    def notes(self) -> list[str]:
        return []


class _Progress(HostProgress):
    """What has no bar yet, such as a place in the queue, goes to the log too."""

    def __init__(self, address: str):
        super().__init__(loads=(LOADING,))
        self.behind = f" at {address}"
        self._where, self._said = address, ""

    def __call__(self, done: int, total: int, what: str) -> None:
        super().__call__(done, total, what)
        if not total and what not in (self._said, ""):
            self._said = what
            logger.info("H3TE: %s: %s", self._where, what)


class RemoteComputing:
    def __init__(self, patcher, unload: bool):
        self._patcher, self._unload = patcher, unload
        self._remote: RemoteEncoder = patcher.model.remote
        self._computed, self._saw = 0.0, False
        self._turns = Turns(1, "prompt")
        self.progress = _Progress(str(self._remote.worker.address))
        self.run: RemoteRun | None = None

    def load(self, batches: Sequence[TokenBatch]) -> None:
        """Nothing is asked of the worker, which loads when it is asked to encode."""
        if runs_code(self._patcher):
            refuse_remote("patches that run code")
        for batch in batches:
            self._check_tokens(len(batch.sequence))

    def _check_tokens(self, count: int) -> None:
        limit = self._remote.health.token_limit
        if count > limit:
            raise ValueError(
                f"{WHO}: expected at most {limit:,} tokens for {self._remote.worker.address}, got {count:,}. Use fewer "
                "or smaller references, or start the worker with a higher limit."
            )

    @contextmanager
    def loaded(self, batches: Sequence[TokenBatch]) -> Iterator[None]:
        """Weights are given up afterwards when the options say so; an error or Stop does not wait for that."""
        self.load(batches)
        begun = time.perf_counter()
        try:
            with turns(len(batches), "prompt") as self._turns:
                yield
                self.progress.finish()
        except BaseException:
            self.progress.stopped()
            if self._unload:
                self._remote.worker.unload(wait=0)
            raise
        waited, seconds = max(0.0, time.perf_counter() - begun - self._computed), self._seconds()
        unloaded = self._unloaded() if self._unload else None
        self.run = RemoteRun(self._remote.where, self._computed, waited, unloaded, seconds)

    def _seconds(self) -> dict[str, float]:
        """The worker knows what computing took; how that is divided, and what its load took, is as it was seen from
        here, a few times a second."""
        seen = self.progress.seconds
        if not self._saw:
            return {**seen, DECODER: self._computed}
        if VISION not in seen or DECODER not in seen:
            return {}
        share = self._computed / (seen[VISION] + seen[DECODER])
        return {stage: took * (share if stage in (VISION, DECODER) else 1) for stage, took in seen.items()}

    def _unloaded(self) -> str:
        try:
            done = self._remote.worker.unload(UNLOAD_SECONDS)
        except (RuntimeError, ValueError) as error:
            logger.warning("%s: the worker keeps its weights: %s", WHO, error)
            return f"the worker keeps its weights: {error}"
        return f"weights unloaded after {'the encode' if done else 'its queue'}, as the options say"

    def encode(
        self, batches: Sequence[TokenBatch], cache: RequestCache | None, show: bool = True
    ) -> list[dict[str, Any]]:
        """One after another: each is a job of its own."""
        found, self.progress.show = [], show
        for batch in self._turns.over(batches):
            batch.status = None  # of an encode before
            done = [self._conditioning(batch, self._asked(batch, cache))]
            if cache is not None:
                cache.keep([batch], done)
            found += results(done)
        return found

    def _asked(self, batch: TokenBatch, cache: RequestCache | None) -> EncodeReply:
        notes = prompt_notes(batch.presentation)
        log_notes(notes, prompt_of(batch.presentation))
        request, width = self._request(batch, cache), self._patcher.model.encoder.config.text.hidden_size
        self._check_bytes(request)
        self.progress.begin()
        reply = self._remote.worker.encode(request, width, self.progress)
        self._check(reply, batch, width)
        self._computed += reply.seconds
        self._saw = self._saw or request.pixel_values is not None or request.pixel_values_videos is not None
        return reply

    def _request(self, batch: TokenBatch, cache: RequestCache | None) -> EncodeRequest:
        identity, seen = self._remote.identity, batch.presentation
        pixels = {"pixel_values": _sent(seen.image, self._remote.dtype), "image_grid_thw": _grids(seen.image)}
        pixels |= {"pixel_values_videos": _sent(seen.video, self._remote.dtype), "video_grid_thw": _grids(seen.video)}
        packing = "official" if cache is None else cache.vision_packing
        return EncodeRequest(
            batch.sequence.ids,
            identity.weights,
            identity.dtype,
            identity.tap_layer,
            packing,
            reuse=cache is not None and cache.reuses_prefixes,
            tp_size=self._remote.health.tp_size,  # other ranks sum otherwise: another key of the cache
            **pixels,
        )

    def _check_bytes(self, request: EncodeRequest) -> None:
        size, limit = sum(piece.nbytes for piece in request.pieces()), self._remote.health.body_limit
        if size > limit:
            raise ValueError(
                f"{WHO}: expected a request of at most {limit / 1e6:,.0f} MB for {self._remote.worker.address}, got "
                f"{size / 1e6:,.0f} MB. Use fewer or smaller references, or start the worker with a higher limit."
            )

    def _check(self, reply: EncodeReply, batch: TokenBatch, width: int) -> None:
        """What is not the answer to this request must be neither used nor kept."""
        shape, sequence = (len(batch.sequence), width), batch.sequence
        as_asked = tuple(reply.hidden.shape) == shape and reply.hidden.dtype == self._remote.dtype
        as_asked = as_asked and max(reply.reused, reply.seen_before) <= len(sequence)
        if not as_asked or not torch.equal(reply.token_tags, sequence.tags.cpu()) or not is_finite(reply.hidden):
            raise RuntimeError(
                f"Remote text encoder {self._remote.worker.address}: expected finite {self._remote.dtype} states "
                f"{list(shape)} with the tags of these tokens, got {reply.hidden.dtype} {list(reply.hidden.shape)} or "
                "other tags or counts. Use the same release of the pack on both machines."
            )

    def _conditioning(self, batch: TokenBatch, reply: EncodeReply) -> Conditioning:
        sequence = batch.sequence
        counts = {"reused": reply.reused, "seen_before": reply.seen_before}
        return Conditioning(reply.hidden[None], sequence.tags, sequence.ids, sequence, batch.presentation, **counts)


def _sent(patches: Patches | None, dtype: torch.dtype) -> torch.Tensor | None:
    """In the dtype to which the encoder casts them."""
    return None if patches is None else patches.pixel_values.to(dtype)


def _grids(patches: Patches | None) -> torch.Tensor | None:
    return None if patches is None else patches.grid_thw
