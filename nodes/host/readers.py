"""How the weights of an encoder are read: the widget's choice, or what the machine's free RAM asks for.

Contract: `choose` is pure: (choice, system, bytes needed, bytes free) -> what is done and why, with both numbers.
`settle` decides once for each loaded encoder, right before its weights are read for the first time: what counts is the
RAM that is free then, not when the loader node ran, whose output ComfyUI keeps. All readers give the same values.

mmap holds no memory of its own: the system keeps what it can of the file and drops it when others need the room. With
less free RAM than the file it would read the same pages again and again, one by one; stream reads layer after layer,
in order, and holds two or three of them. read copies the file into memory, where nothing can take it away: for Windows,
where mapped files have crashed long-lived processes.
"""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass

import comfy.model_management
import torch

from ...encoder import Encoder

logger = logging.getLogger(__name__)

CHOICES = ("auto", "mmap", "read", "stream")
# What must stay free beside the weights: activations and the unpacked matrix where the CPU computes (1 to 2 GB), and
# the system, the browser and ComfyUI itself, which go on working.
RESERVE = 4 * 10**9
COMFORT = 2  # Windows: read into memory only a file that fits this often into the free RAM
_DONE = {
    "mmap": "weights are mapped from the file",
    "read": "weights are read into memory",
    "stream": "weights stay in the file and are read layer by layer",
}


@dataclass(frozen=True)
class Reading:
    """`mode`: of `load_encoder`. `reason`: one line for people."""

    mode: str
    reason: str


def choose(choice: str, system: str, needed: int, free: int) -> Reading:
    """choice: one of CHOICES. system: as `platform.system()` names it. needed, free: bytes."""
    mode = choice if choice != "auto" else _by_memory(system, needed, free)
    spare = f" and {RESERVE / 1e9:.0f} GB to spare" if choice == "auto" and mode == "stream" else ""
    numbers = f"{needed / 1e9:.1f} GB needed{spare}, {free / 1e9:.1f} GB of RAM free"
    warning = "; this can bring the system to a halt: choose auto" if choice == "read" and free < needed else ""
    return Reading(mode, f"{_DONE[mode]}{'' if choice == 'auto' else ', as chosen'}: {numbers}{warning}")


def _by_memory(system: str, needed: int, free: int) -> str:
    if free < needed + RESERVE:
        return "stream"
    return "read" if system == "Windows" and free >= needed * COMFORT else "mmap"


def forecast(choice: str, needed: int) -> str:
    """The loader's line: nothing is read yet, and `auto` decides when it is."""
    reading = choose(choice, platform.system(), needed, free_memory())
    return (
        f"reader auto decides at the first prompt; as of now: {reading.reason}" if choice == "auto" else reading.reason
    )


def settle(tree) -> None:
    """Decide for a HostTree whose weights were not read yet; afterwards, `tree.reading` says what was decided."""
    source = tree.encoder.source
    if tree.reader is None or tree.reading is not None or source is None:
        return
    tree.reading = choose(tree.reader, platform.system(), tree.encoder.weight_bytes, free_memory())
    source.mode = tree.reading.mode
    logger.info("H3TE: %s", tree.reading.reason)


def takes_time(encoder: Encoder) -> bool:
    """Whether reading its weights is worth a progress bar: only reading into memory is more than a look at the file."""
    return encoder.source is not None and encoder.source.mode == "read"


def free_memory() -> int:
    """Bytes of RAM that can be had without swapping, as ComfyUI counts them; cached files count as free."""
    return comfy.model_management.get_free_memory(torch.device("cpu"))
