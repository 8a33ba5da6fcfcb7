"""The worker's entry: `main(script)` for the file that people start.

Contract: returns the exit status, or leaves the process. With --ranks N it starts N ranks under torchrun and waits for
them; started by torchrun it is one of them.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

from ...checkpoint import reader
from .engine import Engine
from .pulse import FAILED
from .ranks import Place, join, launch, place
from .service import follow, serve
from .settings import Settings, SettingsError, read_settings

logger = logging.getLogger(__name__)


def main(script: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger(reader.__name__).setLevel(logging.WARNING)  # a worker reads weights in many pieces
    try:
        settings = read_settings()
    except SettingsError as error:
        logger.error("%s", error)
        return 2
    own = place()
    if own is None and settings.ranks > 1:
        return launch(settings, script, sys.argv[1:])
    if own is not None and settings.ranks not in (1, own.size):
        logger.error("worker: expected --ranks %d as torchrun started, got %d. Leave it out.", own.size, settings.ranks)
        return 2
    status = run_rank(settings, own or Place())
    logging.shutdown()
    os._exit(status)  # a thread may wait in a collective for a rank that is gone


def run_rank(settings: Settings, own: Place) -> int:
    joined = None
    try:
        sock = _bound(settings) if own.rank == 0 else None
        if own.rank == 0:
            logger.info("worker: opens %s", settings.checkpoint)
        joined = join(settings, own)
        engine = Engine(settings, joined.parallel, own.local_rank)
        joined.control.check_alike(engine.facts())
        return follow(joined, engine) if sock is None else serve(settings, joined, engine, sock)
    except (ValueError, OSError, RuntimeError) as error:
        who = "" if own.size == 1 else f"rank {own.rank} of {own.size}: "
        logger.error("worker: %s%s", who, str(error).removeprefix("worker: "))
        if joined is not None and joined.pulse is not None:
            joined.pulse.note(f"{FAILED}{error}")
        return 1


def _bound(settings: Settings) -> socket.socket:
    """The address is taken before weights are looked at. Raises OSError with what to do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    if os.name != "nt":  # there it would let two workers share a port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise OSError(
            f"worker: expected a free address of this machine, got {settings.host} port {settings.port} "
            f"({error.strerror}). Choose another --port, or correct --host."
        ) from error
    return sock
