"""What `Encoder.encode_ids` accepts, checked before anything is computed.

Contract: one sequence of int64 ids, and for each modality patches and grids that agree with each other. Each error is a
ValueError with what was expected, what came and what to do.
"""

from __future__ import annotations

from math import prod

import torch

from .diagnosis import is_finite
from .pixels import Patches
from .vision import Grid

INTEGERS = (torch.int64, torch.int32)


def check_ids(ids: torch.Tensor, vocab_size: int) -> None:
    """ids: int64 [S], S >= 1, each below `vocab_size`."""
    if not isinstance(ids, torch.Tensor) or ids.dim() != 1 or ids.dtype != torch.int64 or not len(ids):
        raise ValueError(
            f"encode_ids: expected int64 ids of shape [S] with S >= 1, got {_described(ids)}. "
            "Encode one sequence at a time, without a batch axis or padding."
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"encode_ids: expected ids from 0 to {vocab_size - 1}, got {low} to {high}. "
            "Use the tokenizer that belongs to this checkpoint."
        )


def pair_patches(
    pixels: torch.Tensor | None,
    grids: torch.Tensor | None,
    pixels_name: str,
    grids_name: str,
    patch_width: int,
    merge: int,
) -> Patches:
    """pixels: floats [N, patch_width]; grids: whole numbers [n, 3], rows and columns multiples of `merge`."""
    if pixels is None or grids is None:
        given, absent = (pixels_name, grids_name) if grids is None else (grids_name, pixels_name)
        raise ValueError(
            f"encode_ids: expected {pixels_name} and {grids_name} together, got {given} alone. Pass {absent}."
        )
    _check_grids(grids, grids_name, merge)
    _check_count(grids, grids_name, pixels)
    rows = sum(prod(grid) for grid in grids.tolist())  # in Python: int64 would overflow to any number
    is_float = isinstance(pixels, torch.Tensor) and pixels.is_floating_point()
    if not is_float or tuple(pixels.shape) != (rows, patch_width):
        raise ValueError(
            f"encode_ids: expected {pixels_name} as floats [{rows}, {patch_width}] ({rows} patches as {grids_name} "
            f"says), got {_described(pixels)}. Pass the patches and grids of the same processor call."
        )
    if not is_finite(pixels):
        raise ValueError(
            f"encode_ids: expected finite {pixels_name}, got NaN or infinity. Check what made the pictures."
        )
    return Patches(pixels, grids)


def _check_grids(grids: torch.Tensor, name: str, merge: int) -> None:
    if not isinstance(grids, torch.Tensor) or grids.dtype not in INTEGERS or grids.dim() != 2 or grids.shape[1] != 3:
        raise ValueError(
            f"encode_ids: expected {name} as int64 [n, 3], got {_described(grids)}. Pass t, h, w of each reference."
        )
    bad = grids[(grids < 1).any(1) | (grids[:, 1:] % merge != 0).any(1)]
    if len(bad) or not len(grids):
        raise ValueError(
            f"encode_ids: expected {name} of at least one grid, rows and columns in multiples of {merge}, got "
            f"{bad[0].tolist() if len(bad) else 'none'}. Pass the grids of the released processor, and None without "
            "references."
        )


def _check_count(grids: torch.Tensor, name: str, pixels: torch.Tensor) -> None:
    """Before they become a list, which takes many times their memory."""
    patches = len(pixels) if isinstance(pixels, torch.Tensor) and pixels.dim() else len(grids)
    if len(grids) > patches:
        raise ValueError(
            f"encode_ids: expected {name} of at most one grid for each of {patches} patches, got {len(grids)}. "
            "Pass the patches and grids of the same processor call."
        )


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def grid_list(patches: Patches | None) -> list[Grid]:
    """Grids as Python ints, so that no later step waits for a device."""
    return [] if patches is None else [tuple(grid) for grid in patches.grid_thw.tolist()]
