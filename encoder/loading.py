"""Building encoders: without weights, or over a checkpoint whose weights come at first use.

Contract: `build_encoder` and `load_encoder` of the public names. `load_encoder` reads headers and checks
self-consistency (shapes agree with the config, enough layers, one served format); whether it is H3's own encoder is
the doctor's question.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .checkpoint.catalog import Catalog, open_catalog
from .checkpoint.formats import resolve
from .checkpoint.reader import CheckpointReader
from .checkpoint.report import depth_problem, foreign_problem, read_dimensions
from .checkpoint.stored_weight import StoredWeight
from .config import EncoderConfig
from .model import Encoder
from .parallel.cuts import Span
from .parallel.group import TensorParallel
from .tap import SELECTED_LAYER, check_whole
from .tokens import H3Tokenizer, find_tokenizer


def build_encoder(
    config: EncoderConfig | Mapping[str, Any],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    tap_layer: int = SELECTED_LAYER,
    ops: Any = None,
    tokenizer: Any = None,
    parallel: TensorParallel | None = None,
) -> Encoder:
    """An encoder without weights: give them with `load_weights`.

    config: an EncoderConfig or the dict of config.json. device: where to compute. dtype: bfloat16 or float32.
    ops: an object whose `.Leaf(weight, bias=None)` is the base of every layer. tokenizer: a folder with vocab.json and
    merges.txt, or an object with `encode`. parallel: this process's place among the ranks that share the encoder (the
    same arguments on each). Raises ValueError for a config, dtype, tap or number of ranks that does not fit.
    """
    if not isinstance(config, EncoderConfig):
        config = EncoderConfig.from_dict(config)
    return Encoder(
        config,
        device=device,
        dtype=dtype,
        tap_layer=tap_layer,
        ops=ops,
        tokenizer=_as_tokenizer(tokenizer),
        parallel=parallel,
    )


def load_encoder(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    tap_layer: int = SELECTED_LAYER,
    ops: Any = None,
    tokenizer: Any = None,
    reader: str = "mmap",
    vision: str | Path | None = None,
    parallel: TensorParallel | None = None,
) -> Encoder:
    """An encoder over a checkpoint: the official folder or its parent, or a single .safetensors or .gguf file.

    Only headers are read now; weights come at first use or by `load_to_device()`, as `reader` says: "mmap" (views of
    the mapped files), "read" (read into memory) or "stream" (read whenever they are needed, for little memory).
    tokenizer None: looked up beside the checkpoint. vision: a second file with the vision tower, for a checkpoint
    without one; None looks beside it. parallel: this process's place among the ranks that share the encoder; each reads
    its own parts of the weights alone. Raises ValueError or FileNotFoundError, with what to do, before any tensor is
    read.
    """
    check_whole(tap_layer)
    catalog = open_catalog(path, tap_layer, vision)
    _check_served(catalog, tap_layer)
    encoder = Encoder(
        read_dimensions(catalog),
        device=device,
        dtype=dtype,
        tap_layer=tap_layer,
        ops=ops,
        tokenizer=_as_tokenizer(tokenizer) if tokenizer is not None else find_tokenizer(catalog.path),
        parallel=parallel,
    )
    if encoder.parallel.is_member:
        _adopt(encoder, catalog, reader)
    return encoder


def _check_served(catalog: Catalog, tap_layer: int) -> None:
    problem = foreign_problem(catalog) or depth_problem(catalog, tap_layer)
    if problem is not None:
        raise ValueError(problem)


def _adopt(encoder: Encoder, catalog: Catalog, reader: str) -> None:
    """Check the catalog against the encoder's slots and give each placeholder the form that is stored."""
    slots = encoder.slots
    found = resolve(catalog, slots.shapes)
    if found.problems:
        raise ValueError(" ".join(found.problems))
    weights = {name: _own_part(found.weights[name], slots.span(name)) for name in slots.names}  # in the pass' order
    encoder.source = CheckpointReader(catalog, weights, reader)
    encoder.source.announce(slots, slots.names)


def _own_part(stored: StoredWeight, span: Span | None) -> StoredWeight:
    return stored if span is None else stored.cut(span.axis, span.start, span.stop)


def _as_tokenizer(tokenizer: Any) -> H3Tokenizer | None:
    if tokenizer is None or isinstance(tokenizer, H3Tokenizer):
        return tokenizer
    if isinstance(tokenizer, (str, Path)):
        return H3Tokenizer.from_folder(tokenizer)
    return H3Tokenizer.from_object(tokenizer)
