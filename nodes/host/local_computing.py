"""Computing with weights that ComfyUI places on a device of this machine.

Contract: a `Computing` (computing.py). The memory of all requests of a call is planned together, told to ComfyUI
before it places weights, and refused if hopeless. Out of memory is tried once more with everything offloaded; Stop
passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import comfy.model_management
import torch

from ...encoder import Conditioning
from ...encoder.packing.kernels import Kernel, use_kernels
from .budget import Budget, budget_of_request
from .kernels import kernels_for
from .progress import HostProgress
from .readers import Reading, settle, takes_time
from .recovery import is_out_of_memory, offload, place_nothing, release
from .request_cache import RequestCache, results
from .tokens import WHO, TokenBatch

logger = logging.getLogger(__name__)

OFFICIAL = "official path: computed by the transformers package on these weights"
REPEATED = "ran out of memory, repeated with all weights offloaded"
UNPLACED = "ran out of memory while weights were loaded, computed with all weights offloaded"
_APART = " and every reference seen on its own (vision_packing per_reference), which may differ in the last bits"


@dataclass(frozen=True)
class LocalRun:
    """A request that was encoded: its plan, bytes on the device and offloaded after it, how weights were read, why it
    was repeated, whether the weights were given up, and what computed."""

    budget: Budget
    resident: int
    offloaded: int
    reading: Reading | None
    repeated: str | None
    released: bool
    how: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        device = self.budget.device
        memory = f"{device}, {self.resident / 1e9:.2f} GB resident, {self.offloaded / 1e9:.2f} GB offloaded"
        if self.released:
            memory = f"{device}, weights unloaded after the encode, as the options say"
        return [memory, self.budget.line(), *self.how]

    def notes(self) -> list[str]:
        return [line for line in (self.repeated, self.budget.warning()) if line]


def kernels_of(patcher) -> tuple[Kernel, ...]:
    """ComfyUI's own kernels that unpack this encoder's weights. Raises as `kernels_for`."""
    tree = patcher.model
    return kernels_for(tree.unpack, patcher.load_device, tree.packings)


class LocalComputing:
    def __init__(self, patcher, backend: str, unload: bool, cache: RequestCache):
        self.patcher, self.backend, self.unload, self.cache = patcher, backend, unload, cache
        self.run: LocalRun | None = None
        self._budget: Budget | None = None
        self._repeated: str | None = None

    def load(self, batches: Sequence[TokenBatch]) -> None:
        """Map the weights, then let ComfyUI place them, with the room that these requests need beside them."""
        encoder = self.patcher.model.encoder
        if batches:
            budget_of_request(self.patcher, *batches, mapped=False).check()
        settle(self.patcher.model)
        encoder.materialise(HostProgress(show=takes_time(encoder)))
        self.patcher.size = 0  # counted anew: stored dtypes are known from here on
        if batches:
            self._budget = budget_of_request(self.patcher, *batches, cache=self.cache)
            logger.info("H3TE: %s", self._budget.line())
            if self._budget.is_tight:
                logger.warning("%s: %s", WHO, self._budget.warning())
        self._place(self._budget.plan.activations if self._budget else 0)

    def _place(self, needed: int) -> None:
        try:
            comfy.model_management.load_models_gpu([self.patcher], memory_required=needed)
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._repeated = UNPLACED
        logger.warning("%s: %s.", WHO, self._repeated)
        place_nothing(self.patcher)

    @contextmanager
    def loaded(self, batches: Sequence[TokenBatch]) -> Iterator[None]:
        """Weights are placed for the length of a request, and given up after it when the options say so."""
        try:
            self.load(batches)
            yield
            self.run = self._told()
        finally:
            if self.unload:
                release(self.patcher)

    def _told(self) -> LocalRun:
        resident, reading = self.patcher.loaded_size(), self.patcher.model.reading
        rest = self.patcher.model_size() - resident
        how = [OFFICIAL] if self.backend == "official" else []
        how += [] if reading is None else [reading.reason]
        names = sorted({kernel.packing.name for kernel in kernels_of(self.patcher)})
        how += [f"{' and '.join(names)} weights are unpacked by ComfyUI's own kernels"] if names else []
        return LocalRun(self._budget, resident, rest, reading, self._repeated, self.unload, tuple(how))

    def encode(
        self, batches: Sequence[TokenBatch], cache: RequestCache | None, show: bool = True
    ) -> list[dict[str, Any]]:
        for batch in batches:
            batch.status = None  # of an encode before
        try:
            done = self._compute(batches, show, cache=cache)
            if cache is not None:
                cache.keep(batches, done)
            return results(done)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # out here the error is gone, and with it the activations that its traceback held
        self._offload(cache)
        try:
            return results(self._compute(batches, show, "per_reference"))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error)
        raise RuntimeError(
            f"{WHO}: expected enough memory with all weights offloaded, got none again ({said.rstrip('.')}). "
            f"{self._budget.line()}. To make it fit, {self._budget.advice()}."
        )

    def _offload(self, cache: RequestCache | None) -> None:
        apart = self.backend == "encoder" and any(self._budget.plan.patches)
        self._repeated = REPEATED + (_APART if apart else "")
        logger.warning("%s: %s.", WHO, self._repeated)
        offload(self.patcher)
        if cache is not None:
            cache.make_room()

    def _compute(
        self,
        batches: Sequence[TokenBatch],
        show: bool,
        vision_packing: str = "official",
        cache: RequestCache | None = None,
    ) -> list[Conditioning]:
        device, given = self.patcher.load_device, [batch.presentation for batch in batches]
        tree = self.patcher.model
        with _current(device), use_kernels(kernels_of(self.patcher)):
            if self.backend == "official":
                official = tree.official()
                return [official.encode_presentation(p, progress=HostProgress(show), device=device) for p in given]
            first_try = vision_packing == "official"  # the second does with one matrix at a time
            options = {"progress": HostProgress(show), "device": device, "lend_once": first_try}
            options |= {"prefixes": None if cache is None else cache.prefixes}
            packing = vision_packing if cache is None else cache.vision_packing  # also where no prefix fits any more
            return tree.encoder.encode_presentations(given, **options, vision_packing=packing)


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Kernels of several-GPU machines ask for the current device."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield
