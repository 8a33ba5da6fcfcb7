"""An encoder whose weights are a worker's: who it is, and whether it is the one that was asked for.

Contract: `find_remote(address, dtype, backend)` asks the worker once and refuses what cannot be served;
`check_same(remote, text_encoder, vision_file)` compares it to a checkpoint of this machine. Nothing of it holds
weights.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from ...encoder import SELECTED_LAYER, load_encoder
from ...encoder.cache.content import NUMERICS_VERSION
from ...encoder.cache.identity import EncoderIdentity, encoder_identity
from ...encoder.parallel.protocol import Health
from ...encoder.parallel.remote import RemoteWorker
from .paths import OPTIONS, REMOTE, WHO, cached_report, none_here, resolve, resolve_vision
from .remote_workers import worker_at
from .stop import heed_stop

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteEncoder:
    """What stands in a tree in place of weights."""

    worker: RemoteWorker
    health: Health

    @property
    def identity(self) -> EncoderIdentity:
        return self.health.identity

    @property
    def backend(self) -> str:
        """As part of a request's key: one rank gives the very bits of a local encoder, several may not."""
        return "encoder" if self.health.tp_size == 1 else f"encoder tp{self.health.tp_size}"

    @property
    def label(self) -> str:
        """Format and size, for people."""
        return self.health.label

    @property
    def where(self) -> str:
        ranks = self.health.tp_size
        return f"{self.worker.address}, {ranks} {'rank' if ranks == 1 else 'ranks'}"

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.health.dtype)

    def lines(self) -> list[str]:
        """For the loader's text."""
        health = self.health
        limits = f"up to {health.token_limit:,} tokens and {health.body_limit / 1e9:.2f} GB a request"
        return [
            self.label,
            f"computed by {self.where} on {health.device} in {health.dtype}; no checkpoint is opened here",
            f"takes {limits}; {health.waiting} of at most {health.queue_limit} requests wait",
        ]


def find_remote(address: str, dtype: str = "auto", backend: str = "encoder") -> RemoteEncoder:
    """dtype, backend: as the options node offers them. Raises ValueError and RuntimeError that say what to do."""
    if backend != "encoder":
        raise ValueError(
            f"{OPTIONS}: expected backend encoder with remote {address!r:.100}, got {backend}. A worker computes with "
            "this pack's encoder: choose it, or empty remote."
        )
    worker = worker_at(address)
    remote = RemoteEncoder(worker, worker.health(while_waiting=heed_stop))
    _check_served(remote, dtype)
    return remote


def _check_served(remote: RemoteEncoder, dtype: str) -> None:
    address, health = remote.worker.address, remote.health
    if health.numerics != NUMERICS_VERSION:
        raise RuntimeError(
            f"Remote text encoder {address}: expected results of numerics {NUMERICS_VERSION}, got {health.numerics} "
            f"(its pack is {health.pack}). Use the same release of the pack on both machines."
        )
    if health.tap_layer != SELECTED_LAYER:
        raise RuntimeError(
            f"Remote text encoder {address}: expected hidden states after layer {SELECTED_LAYER}, got layer "
            f"{health.tap_layer}. MiniMax H3 is conditioned on layer {SELECTED_LAYER} alone: start the worker with it."
        )
    if dtype not in ("auto", health.dtype):
        raise ValueError(
            f"{OPTIONS}: expected dtype auto or {health.dtype}, in which the worker at {address} computes, got "
            f"{dtype}. Choose that, or start the worker with --dtype {dtype}."
        )


def check_same(remote: RemoteEncoder, text_encoder: str, vision_file: str) -> list[str]:
    """Lines for the loader's text, about the checkpoint that its widgets mean; none where nothing is there or meant.
    Headers are read and a sample of the bytes. Raises ValueError where the worker serves another one."""
    path = None if none_here(text_encoder) else _found(text_encoder)
    if path is None:
        return []
    vision = resolve_vision(vision_file)
    report = cached_report(path, vision)
    encoder = load_encoder(path, dtype=remote.dtype, vision=vision)
    try:
        own = encoder_identity(encoder, report)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{WHO}: {error}") from error
    if own.weights != remote.identity.weights:
        raise ValueError(
            f"{WHO}: expected the worker at {remote.worker.address} to serve what is chosen here ({own.label}), got "
            f"{remote.label}. Choose the same file here, or {REMOTE}, or start the worker with this checkpoint."
        )
    return [f"the worker serves the very weights of {path.name}"]


def _found(text_encoder: str) -> Path | None:
    try:
        return resolve(text_encoder)
    except ValueError as error:
        if not isinstance(text_encoder, str):
            raise
        logger.info("H3TE: no checkpoint to compare with: %s", error)
        return None
