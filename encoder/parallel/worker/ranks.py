"""One process's place among the ranks that torchrun started, and starting them.

Contract: `place()` reads torchrun's variables; `join(settings, place)` makes the groups: NCCL or gloo to compute, gloo
for control. `launch(settings, script, arguments)` starts N ranks of this very command on this machine, under torchrun,
and returns its exit status.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..group import TensorParallel
from .control import AgreedParallel, Control
from .engine import chosen_device
from .pulse import Pulse, store_of
from .settings import Settings

logger = logging.getLogger(__name__)

GROUP_TIMEOUT = timedelta(hours=1)  # one rank may load weights for long while others wait; the dead are found otherwise


@dataclass(frozen=True)
class Place:
    rank: int = 0
    size: int = 1
    local_rank: int = 0


@dataclass(frozen=True)
class Joined:
    """What one rank has of the others; pulse and parallel are None for one alone."""

    place: Place
    control: Control
    parallel: TensorParallel | None = None
    pulse: Pulse | None = None


def place() -> Place | None:
    """None where torchrun did not start this process."""
    told = os.environ
    if "RANK" not in told or "WORLD_SIZE" not in told:
        return None
    return Place(int(told["RANK"]), int(told["WORLD_SIZE"]), int(told.get("LOCAL_RANK", 0)))


def join(settings: Settings, place: Place) -> Joined:
    """Raises ValueError for a number of ranks, or a device, that is not served."""
    TensorParallel(place.rank, place.size)
    if place.size == 1:
        return Joined(place, Control())
    device = chosen_device(settings.device, place.local_rank)
    # a broken sum is found by the pulse; NCCL's own watchdog would abort rank 0 before it has answered
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=GROUP_TIMEOUT)
    pulse = Pulse(store_of, place.rank, place.size, settings.rank_timeout)
    control = Control(place.rank, place.size, dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT))
    parallel = AgreedParallel(place.rank, place.size, None, control)
    parallel.sum(torch.zeros(1, device=device))  # NCCL takes its memory now
    return Joined(place, control, parallel, pulse)


def launch(settings: Settings, script: Path, arguments: Sequence[str]) -> int:
    from torch.distributed.run import main

    ranks = settings.ranks
    logger.info("worker: starts %d ranks", ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    if sys.platform == "win32":
        os.environ.setdefault("USE_LIBUV", "0")  # PyTorch for Windows is built without it
    try:
        main([*_meeting(), f"--nproc-per-node={ranks}", str(script), *arguments])
    except dist.elastic.multiprocessing.errors.ChildFailedError:
        return 1
    except dist.elastic.multiprocessing.api.SignalException:
        return 0
    return 0


def _meeting() -> list[str]:
    """Where they meet, as torchrun is told: out of reach of other machines. Windows hands no open socket to a store:
    there it is the standard way, and a firewall's to keep others out."""
    if sys.platform == "win32":
        return ["--standalone"]
    from . import local_store

    own = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if own:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", own[0])  # else the address of the machine's name
    local_store.register()
    return ["--nnodes=1", f"--rdzv-backend={local_store.BACKEND}", f"--local-addr={local_store.HOST}"]
