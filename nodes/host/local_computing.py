"""Computing with weights that ComfyUI places on a device of this machine.

Contract: a `Computing` (computing.py). The memory of all requests of a call is planned together, told to ComfyUI
before it places weights, and refused if hopeless. Out of memory is tried once more with everything offloaded; Stop
passes through, and leaves nothing half loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import comfy.model_management
import torch

from ...encoder import Conditioning
from ...encoder.packing.kernels import Kernel, use_kernels
from ...encoder.progress import LOAD, PLACING, READING
from .budget import Budget, budget_of_request
from .kernels import kernels_for
from .placing import PATCHING, placing
from .progress import HostProgress, times
from .readers import Reading, settle, takes_time
from .recovery import is_out_of_memory, offload, place_nothing, release
from .request_cache import RequestCache, results
from .tokens import WHO, TokenBatch
from .turns import Turns, turns

logger = logging.getLogger(__name__)

OFFICIAL = "official path: computed by the transformers package on these weights"
REPEATED = "ran out of memory, repeated with all weights offloaded"
UNPLACED = "ran out of memory while weights were loaded, computed with all weights offloaded"
AGAIN = "again with all weights offloaded, "  # of what is done
_APART = " and every reference seen on its own (vision_packing per_reference), which may differ in the last bits"


@dataclass(frozen=True)
class LocalRun:
    """A request that was encoded: its plan, bytes on the device and offloaded after it, how weights were read, why it
    was repeated, whether the weights were given up, what computed, and how long each part took."""

    budget: Budget
    resident: int
    offloaded: int
    reading: Reading | None
    repeated: str | None
    released: bool
    how: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        device = self.budget.device
        memory = f"{device}, {self.resident / 1e9:.2f} GB resident, {self.offloaded / 1e9:.2f} GB offloaded"
        if self.released:
            memory = f"{device}, weights unloaded after the encode, as the options say"
        return [memory, self.budget.line(), *self.how, *([times(self.seconds)] if self.seconds else [])]

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
        self.progress = HostProgress(device=patcher.load_device)
        self._turns = Turns(1, "prompt")
        self._budget: Budget | None = None
        self._repeated: str | None = None

    def load(self, batches: Sequence[TokenBatch]) -> None:
        """Map the weights, then let ComfyUI place them, with the room that these requests need beside them."""
        encoder = self.patcher.model.encoder
        if batches:
            budget_of_request(self.patcher, *batches, mapped=False).check()
        settle(self.patcher.model)
        resident = self.patcher.loaded_size() if encoder.is_loaded else -1
        self._expect(batches)
        encoder.materialise(self.progress)
        self.patcher.size = 0  # counted anew: stored dtypes are known from here on
        if batches:
            self._budget = budget_of_request(self.patcher, *batches, cache=self.cache)
            logger.info("H3TE: %s", self._budget.line())
            if self._budget.is_tight:
                logger.warning("%s: %s", WHO, self._budget.warning())
        self._place(self._budget.plan.activations if self._budget else 0)
        if self.patcher.loaded_size() != resident:
            self.progress.ends(LOAD)

    def _expect(self, batches: Sequence[TokenBatch]) -> None:
        """What the progress of this call will be about."""
        encoder, on_cpu = self.patcher.model.encoder, self.patcher.load_device.type == "cpu"
        takes = {READING: takes_time(encoder), PATCHING: bool(self.patcher.patches), PLACING: not on_cpu}
        self.progress.loads = [what for what, it_does in takes.items() if it_does]
        self.progress.steps = encoder.tap_layer
        if encoder.config.vision and any(b.presentation.image or b.presentation.video for b in batches):
            self.progress.steps += encoder.config.vision.depth
        self.progress.begin()

    def _place(self, needed: int) -> None:
        patcher = self.patcher
        try:
            with placing(self.progress, patcher.load_device, len(patcher.patches)):
                comfy.model_management.load_models_gpu([patcher], memory_required=needed)
            return
        except BaseException as error:
            if not is_out_of_memory(error):
                patcher.detach()  # newer releases do so for an Exception, which Stop is not there
                raise
        self._repeated = UNPLACED
        logger.warning("%s: %s.", WHO, self._repeated)
        place_nothing(patcher)

    @contextmanager
    def loaded(self, batches: Sequence[TokenBatch]) -> Iterator[None]:
        """Weights are placed for the length of a request, and given up after it when the options say so."""
        try:
            with turns(len(batches) if self.backend == "official" else 1, "prompt") as self._turns:
                self.load(batches)
                yield
                self.progress.finish()
            self.run = self._told()
        except BaseException:
            self.progress.stopped()
            raise
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
        told = self._repeated, self.unload, tuple(how), self.progress.seconds
        return LocalRun(self._budget, resident, rest, reading, *told)

    def encode(
        self, batches: Sequence[TokenBatch], cache: RequestCache | None, show: bool = True
    ) -> list[dict[str, Any]]:
        self.progress.show = show
        for batch in batches:
            batch.status = None  # of an encode before
        try:
            done = self._compute(batches, cache=cache)
            if cache is not None:
                cache.keep(batches, done)
            return results(done)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # out here the error is gone, and with it the activations that its traceback held
        self._offload(cache)
        try:
            return results(self._compute(batches, "per_reference"))
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
        self.progress.before = AGAIN
        if cache is not None:
            cache.make_room()

    def _compute(
        self,
        batches: Sequence[TokenBatch],
        vision_packing: str = "official",
        cache: RequestCache | None = None,
    ) -> list[Conditioning]:
        device, given = self.patcher.load_device, [batch.presentation for batch in batches]
        tree, options = self.patcher.model, {"progress": self.progress, "device": device}
        self._begin(len(batches))
        with _current(device), use_kernels(kernels_of(self.patcher)):
            if self.backend == "official":
                return [tree.official().encode_presentation(each, **options) for each in self._turns.over(given)]
            options |= {"lend_once": vision_packing == "official"}  # a second try does with one matrix at a time
            options |= {"prefixes": None if cache is None else cache.prefixes}
            packing = vision_packing if cache is None else cache.vision_packing  # also where no prefix fits any more
            return tree.encoder.encode_presentations(given, **options, vision_packing=packing)

    def _begin(self, count: int) -> None:
        together = f", {count} prompts in one pass" if count > 1 and self.backend == "encoder" else ""
        self.progress.behind = f", {self.patcher.loaded_size() / 1e9:.1f} GB resident{together}"
        self.progress.begin()


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Kernels of several-GPU machines ask for the current device."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield
