"""The encoder of one rank: opened, loaded, used and unloaded.

Contract: `Engine(settings, parallel)` reads headers. `encode(request, step)` loads at first use and gives the reply;
`step(done, total, what)` is called before anything long, and what it raises leaves the engine usable. `check(request)`
computes nothing and may be called from another thread. On every rank the same calls make the same steps.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from typing import Any

import torch

from ...cache.identity import EncoderIdentity, encoder_identity
from ...cache.identity_records import config_values
from ...cache.prefixes import PrefixStore, PrefixUse
from ...checkpoint import CheckpointReport, inspect_checkpoint
from ...loading import load_encoder
from ...pack_version import pack_version
from ...progress import LOADING, Progress
from ...tap import SELECTED_LAYER
from ...tokens import IMAGE_PAD, TEXT_TAG, VIDEO_PAD, VISION_END, VISION_START, VISION_TAG
from ..group import TensorParallel
from ..protocol import EncodeReply, EncodeRequest, Health, dtype_name
from .settings import Limits, Settings

logger = logging.getLogger(__name__)

AT_ONCE = 16  # weights that are read between two steps
_MARKS = torch.tensor([VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD])
_TENSORS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")


class Engine:
    def __init__(self, settings: Settings, parallel: TensorParallel | None = None, local_rank: int = 0):
        """local_rank: which of its machine's GPUs a rank of several takes. Raises as `load_encoder`, and ValueError for
        a checkpoint that is not H3's encoder."""
        self.report = _served_report(settings)
        self.device = chosen_device(settings.device, local_rank)
        options = {} if parallel is None else {"parallel": parallel}
        self.encoder = load_encoder(
            settings.checkpoint,
            device=self.device,
            dtype=getattr(torch, settings.dtype),
            tap_layer=settings.tap_layer,
            reader=settings.reader,
            vision=settings.vision,
            **options,
        )
        self.streams = settings.reader == "stream"
        self.loaded = False
        self._tells = parallel is None or parallel.rank == 0  # one line for all ranks
        self._identity: EncoderIdentity | None = None
        self._alike = (settings.reader, settings.prefix_bytes)
        self._prefixes = PrefixStore(lambda: settings.prefix_bytes)

    def enter(self) -> None:
        """In the thread that computes: its GPU."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def identity(self) -> EncoderIdentity:
        """Of the files, by content, as a local encoder is told, read once; raises as `encoder_identity`."""
        if self._identity is None:
            self._identity = encoder_identity(self.encoder, self.report)
        return self._identity

    def facts(self) -> str:
        """What has to be the same on all ranks, for one result and for the same steps to it."""
        return f"{self.identity().key} {pack_version()} {self.device.type} {self._alike}"

    def health(self, identity: EncoderIdentity, limits: Limits, waiting: int) -> Health:
        encoder = self.encoder
        return Health(
            weights=identity.weights,
            format=identity.format,
            label=identity.label,
            dtype=dtype_name(encoder.dtype),
            tap_layer=encoder.tap_layer,
            config=config_values(encoder.config),
            tp_size=encoder.tp_size,
            device=str(self.device),
            loaded=self.loaded,
            weight_bytes=encoder.weight_bytes,
            vision=encoder.config.vision is not None,
            waiting=waiting,
            queue_limit=limits.queue,
            body_limit=limits.body_bytes,
            token_limit=limits.tokens,
            pack=pack_version(),
        )

    def check(self, request: EncodeRequest) -> None:
        """Raises ValueError unless ids and pictures fit each other and the model."""
        self.encoder.checked_request(request.input_ids, **_pictures(request))

    def encode(self, request: EncodeRequest, step: Progress) -> EncodeReply:
        self.load(step)
        started = time.perf_counter()
        given = self.encoder.checked_request(request.input_ids, **_pictures(request))
        reuses = request.reuse and request.vision_packing == "per_reference"
        prefixes = PrefixUse(self._prefixes, "worker") if reuses else None
        options = {"progress": step, "vision_packing": request.vision_packing, "prefixes": prefixes}
        hidden, reused, seen_before = self.encoder.encode_request(given, **options)
        hidden = hidden.cpu()
        seconds = time.perf_counter() - started
        return EncodeReply(hidden, token_tags(request.input_ids), reused, seen_before, seconds)

    def load(self, step: Progress) -> None:
        """Weights into memory or mapped, and to the device, unless they are streamed. A cancel leaves it half done."""
        if self.loaded:
            return
        started, pieces = time.perf_counter(), list(self._pieces())
        for i, piece in enumerate(pieces):
            step(i, len(pieces), LOADING)
            piece()
        step(len(pieces), len(pieces), LOADING)  # from here on every rank has its part
        self.loaded = True
        if self._tells:
            logger.info("worker: weights loaded in %.1f s", time.perf_counter() - started)

    def _pieces(self) -> Iterator[Any]:
        slots, source = self.encoder.slots, self.encoder.source
        missing = slots.missing()
        for start in range(0, len(missing), AT_ONCE):
            names = missing[start : start + AT_ONCE]
            yield lambda names=names: source.fill(slots, names)
        if self.device.type != "cpu" and not self.streams:
            for layer in self.encoder.model.language_model.layers:
                yield lambda layer=layer: layer.to(self.device)
            yield lambda: self.encoder.to(self.device)

    def unload(self) -> None:
        """Nothing of the weights stays, but for what the system caches of their files, nor of reused beginnings."""
        self.loaded = False
        self.recover()

    def recover(self) -> None:
        """After a failure on any rank: no prefix and no weight that another rank may lack, no memory of the attempt."""
        if not self.loaded:
            self.encoder.to("cpu")
            self.encoder.source.announce(self.encoder.slots, self.encoder.slots.names)
        self._prefixes.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def token_tags(ids: torch.Tensor) -> torch.Tensor:
    """int64 [S]: of every token of a vision block, markers included, VISION_TAG; text never holds one of them."""
    return torch.where(torch.isin(ids, _MARKS), VISION_TAG, TEXT_TAG)


def _pictures(request: EncodeRequest) -> dict[str, torch.Tensor | None]:
    return {name: getattr(request, name) for name in _TENSORS}


def _served_report(settings: Settings) -> CheckpointReport:
    report = inspect_checkpoint(settings.checkpoint, settings.tap_layer, settings.vision)
    if report.problems and settings.tap_layer == SELECTED_LAYER:  # another tap is for test models
        raise ValueError(" ".join(report.problems))
    return report


def chosen_device(wanted: str, local_rank: int = 0) -> torch.device:
    """ "auto": a GPU where there is one. Without a number it is the one of the rank. Raises ValueError."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(wanted.partition(":")[2] or local_rank)
    if index >= count:
        raise ValueError(
            f"worker: expected GPU {index} of this machine, got {count} GPUs. Start as many ranks as there are GPUs, "
            "or use --device cpu."
        )
    return torch.device("cuda", index)
