"""What goes wrong in transformers' Qwen3-VL when parts of it lie on other devices, and what its positions drift by.

Contract: a scene is `scene(family)` that raises when it goes wrong; `outcome` turns it into "passes" or "fails: why".
`drift(family, dtype)`: largest difference from the closed form before the first block. `measure(family)` holds all of
it unpatched and patched. `meta` is the accelerator, and no operation may mix devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from h3te.patches import Patches, for_transformers
from h3te.patches.closed_interpolation import choose
from h3te.patches.qwen3_vl import Family
from h3te_tests.one_device import OneDevice, without_autocast
from h3te_tests.patch_towers import (
    CPU,
    META,
    Elsewhere,
    cast_leaves,
    closed_form,
    first,
    grids,
    moved_but,
    pixels,
    premade,
    text_rotary,
    tower,
)
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WAIT_SECONDS = 60


def table_elsewhere(family: Family) -> None:
    """Only the table of positions is left on the CPU."""
    _sees(moved_but(tower(family), "pos_embed"), **premade(family, META))


def vision_frequencies_elsewhere(family: Family) -> None:
    """Only the tower's inv_freq is left on the CPU."""
    _sees(moved_but(tower(family), "rotary_pos_emb"), **premade(family, META))


def grids_elsewhere(family: Family) -> None:
    """Everything is on the device but the grids, as the processor returns them."""
    _sees(tower(family).to(META))


def casting_leaves(family: Family) -> None:
    """No weight is on the device and no grid; each leaf casts its own weights at each call."""
    _sees(cast_leaves(tower(family)))


def two_devices_at_once(family: Family) -> None:
    """One tower, one thread on each of two devices, both past the patch embedding before either goes on."""
    built = cast_leaves(tower(family))
    wanted = first(built(pixels(), grid_thw=grids()))
    barrier = threading.Barrier(2, timeout=WAIT_SECONDS)
    handle = built.patch_embed.register_forward_hook(lambda *_: [barrier.wait()].clear())
    try:
        with ThreadPoolExecutor(2) as pool:
            there, here = (pool.submit(_look, built, device, barrier) for device in (META, CPU))
            there, here = there.result(), here.result()
    finally:
        handle.remove()
    if there.device != META or here.device != CPU or not torch.equal(here, wanted):
        raise RuntimeError("the two threads' devices crossed")


def text_frequencies_elsewhere(family: Family) -> None:
    """The decoder's inv_freq is left on the CPU. Passes where the decoder's rotary embedding is of another kind."""
    if family.text_rotary is None:
        return
    rotary = text_rotary(family)
    hidden, positions = torch.empty(1, 5, 32, device=META), torch.empty(3, 1, 5, dtype=torch.int64, device=META)
    with OneDevice(), without_autocast():
        tables = rotary(hidden, positions)
    if {table.device for table in tables} != {META}:
        raise RuntimeError(f"rotary tables on {[str(table.device) for table in tables]}")


SCENES: dict[str, Callable[[Family], None]] = {
    "table of positions elsewhere": table_elsewhere,
    "vision inv_freq elsewhere": vision_frequencies_elsewhere,
    "grids elsewhere": grids_elsewhere,
    "weights and grids elsewhere, leaves cast": casting_leaves,
    "two devices at once": two_devices_at_once,
    "text inv_freq elsewhere": text_frequencies_elsewhere,
}


def _sees(built: nn.Module, **positions: torch.Tensor) -> None:
    with OneDevice(), torch.no_grad():
        merged = first(built(pixels(META), grid_thw=grids(), **positions))
    if merged.device != META:
        raise RuntimeError(f"features on {merged.device}")


def _look(built: nn.Module, device: torch.device, barrier: threading.Barrier) -> torch.Tensor:
    try:
        with OneDevice(), torch.no_grad():
            return first(built(pixels(device), grid_thw=grids()))
    except BaseException:
        barrier.abort()
        raise


def outcome(scene: Callable[[Family], None], family: Family) -> str:
    """ "passes", or "fails: " and the first line of the error."""
    try:
        scene(family)
    except (RuntimeError, NotImplementedError, threading.BrokenBarrierError) as error:
        return "fails: " + (str(error).splitlines() or [type(error).__name__])[0][:160]
    return "passes"


def before_first_block(built: nn.Module, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden states as the first block gets them, the same by the closed form in float32)."""
    seen = []
    handles = [
        built.patch_embed.register_forward_hook(lambda module, given, result: seen.append(result.clone())),
        built.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[0].clone())),
    ]
    with torch.no_grad():
        built(pixels(dtype=dtype), grid_thw=grids())
    for handle in handles:
        handle.remove()
    patches, hidden = seen
    taps, weights = closed_form()
    positions = (built.pos_embed.weight[taps] * weights[:, :, None]).sum(1)
    return hidden, patches + positions.to(patches.dtype)


def drift(family: Family, dtype: torch.dtype, chosen: bool = True) -> float:
    """Largest difference before the first block; infinite for another dtype. chosen: as our backend builds a tower."""
    built = tower(family, dtype)
    if chosen:
        choose(built)
    hidden, wanted = before_first_block(built, dtype)
    return float((hidden - wanted).abs().max()) if hidden.dtype == wanted.dtype else float("inf")


def seen(family: Family, patched: bool = False) -> list[torch.Tensor]:
    """Features of a request in place; with the patch also those of a request on a device that can hold values."""
    built = tower(family)
    requests = [pixels(), pixels().as_subclass(Elsewhere)][: 1 + patched]
    with torch.no_grad():
        return [first(built(x, grid_thw=grids())) for x in requests]


def all_equal(tensors: list[torch.Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors)


@contextmanager
def installed(interpolation: str = "chosen") -> Iterator[Patches]:
    """The patches, installed for a while."""
    patches = for_transformers(interpolation)
    patches.apply()
    try:
        yield patches
    finally:
        patches.remove()


def _drifts(family: Family, chosen: bool = True) -> dict[str, float]:
    return {name: drift(family, dtype, chosen) for name, dtype in DTYPES.items()}


def measure(family: Family) -> dict:
    """Everything of one model. scenes: [unpatched, patched]; drift: by kind of tower and dtype; values: bits kept."""
    before = {name: outcome(scene, family) for name, scene in SCENES.items()}
    drifts, features = {"unpatched": _drifts(family)}, seen(family)
    with installed():
        scenes = {name: [before[name], outcome(scene, family)] for name, scene in SCENES.items()}
        drifts |= {"chosen": _drifts(family), "not chosen": _drifts(family, chosen=False)}
        features += seen(family, patched=True)
    with installed("all"):
        drifts["all"] = _drifts(family, chosen=False)
    return {"generation": family.generation, "scenes": scenes, "drift": drifts, "values": all_equal(features)}
