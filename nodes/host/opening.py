"""Opening a checkpoint as a CLIP, and sharing its weights between everybody who opens it in the same way.

Contract: `load_clip(...)` -> H3Clip. Handles of one file state, device, dtype, reader, vision file and kernel choice
share one set of weights as long as one of them lives; patches, hooks and options are each handle's own. A file that was
replaced is another one. `load_patcher` always opens anew: newer ComfyUI makes copies for other devices with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from ...encoder import build_encoder, load_encoder
from ...encoder.cache.identity import EncoderIdentity
from ...encoder.cache.identity_records import KnownIdentity
from ...encoder.tokens import find_tokenizer
from .caches import CacheSettings
from .clip import H3Clip, make_patcher
from .leaf import HostOps
from .paths import cached_report, file_state
from .remote_encoder import RemoteEncoder
from .text_encoder_files import bundled_tokenizer
from .tree import HostTree

logger = logging.getLogger(__name__)

_shared: WeakValueDictionary = WeakValueDictionary()  # how it was opened -> the unpatched patcher, parent of all others


def load_clip(
    path: Path,
    load_device: torch.device,
    offload_device: torch.device,
    dtype: torch.dtype,
    reader: str = "auto",
    vision: Path | None = None,
    unpack: str = "auto",
    backend: str = "encoder",
    unload: bool = False,
    caches: CacheSettings | None = None,
) -> H3Clip:
    """A CLIP over a checkpoint. Headers are read, weights are not. reader, unpack, backend, unload, caches: as the
    options node offers them; vision: a second file for a GGUF file. Raises as `load_encoder`, `kernels_for` and
    `official_model`."""
    arguments = (str(path), load_device, offload_device, dtype, reader, None if vision is None else str(vision), unpack)
    clip = H3Clip(_shared_patcher(arguments, path, vision).clone(), backend, unload, caches)
    clip.patcher.cached_patcher_init = (load_patcher, arguments)  # older releases do not hand it on to clones
    clip.prepare()
    return clip


def _shared_patcher(arguments: tuple, path: Path, vision: Path | None):
    key = (*arguments, file_state(path), None if vision is None else file_state(vision))
    patcher = _shared.get(key)
    if patcher is None:
        patcher = load_patcher(*arguments)
        # newer releases make independent copies for other devices through this
        patcher.cached_patcher_init = (load_patcher, arguments)
        _shared[key] = patcher
    else:
        logger.info("H3TE: %s is open already: its weights are shared.", path.name)
    return patcher


def load_patcher(
    path: str,
    load_device: torch.device,
    offload_device: torch.device,
    dtype: torch.dtype,
    reader: str = "auto",
    vision: str | None = None,
    unpack: str = "auto",
    disable_dynamic: bool = False,
):
    """The model patcher over a freshly opened encoder. It is the plain one, with nothing dynamic to disable."""
    tokenizer = find_tokenizer(path) or bundled_tokenizer()
    encoder = load_encoder(path, device=load_device, dtype=dtype, ops=HostOps, tokenizer=tokenizer, vision=vision)
    report = cached_report(Path(path), None if vision is None else Path(vision))
    return make_patcher(HostTree(encoder, report, reader, unpack), load_device, offload_device)


def open_recorded(
    known: KnownIdentity, load_device: torch.device, offload_device: torch.device, settings: CacheSettings
) -> H3Clip:
    """A CLIP without weights of an encoder that conditioning was stored of: what is stored is answered."""
    tree = _without_weights(known.identity, known.config, load_device)
    tree.recorded = known.identity
    return H3Clip(make_patcher(tree, load_device, offload_device), caches=settings)


def open_remote(
    remote: RemoteEncoder,
    load_device: torch.device,
    offload_device: torch.device,
    unload: bool = False,
    caches: CacheSettings | None = None,
) -> H3Clip:
    """A CLIP without weights that a worker computes for."""
    tree = _without_weights(remote.identity, remote.health.config, load_device)
    tree.remote = remote
    return H3Clip(make_patcher(tree, load_device, offload_device), unload=unload, caches=caches)


def _without_weights(identity: EncoderIdentity, config: Mapping, device: torch.device) -> HostTree:
    """Its modules stand for the names and shapes that LoRA loaders look for."""
    options = {"device": device, "dtype": getattr(torch, identity.dtype), "tap_layer": identity.tap_layer}
    return HostTree(build_encoder(config, **options, ops=HostOps, tokenizer=bundled_tokenizer()))
