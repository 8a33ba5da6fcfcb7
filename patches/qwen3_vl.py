"""The classes of transformers' Qwen3-VL and of the models that share its vision tower, in every release we know.

Contract: `families()` -> the classes that can be patched; whatever has another shape is left alone and named in the
log. Three generations of the tower, told apart by what their module holds, never by their code, which somebody may have
wrapped:
`method` (4.57 to 5.8): the tower interpolates positions in a method of its own, on the table's device;
`bilinear` (5.9 to 5.14): a shared function makes four taps and their weights from linspace coordinates, on the grids'
device; `closed` (5.15 and later): the same in closed form, which is the form that MiniMax H3 was released with.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

logger = logging.getLogger(__name__)

OLDEST, BEYOND = (4, 57), (6, 0)
# Module below transformers.models -> vision tower, text rotary embedding (None: one of another kind). Not every release
# has every module.
CLASSES: dict[str, tuple[str, str | None]] = {
    "qwen3_vl": ("Qwen3VLVisionModel", "Qwen3VLTextRotaryEmbedding"),
    "qwen3_vl_moe": ("Qwen3VLMoeVisionModel", "Qwen3VLMoeTextRotaryEmbedding"),
    "qwen3_omni_moe": ("Qwen3OmniMoeVisionEncoder", "Qwen3OmniMoeThinkerTextRotaryEmbedding"),
    "qwen3_5": ("Qwen3_5VisionModel", "Qwen3_5TextRotaryEmbedding"),
    "qwen3_5_moe": ("Qwen3_5MoeVisionModel", "Qwen3_5MoeTextRotaryEmbedding"),
    "qwen4_exp": ("Qwen4ExpVisionModel", "Qwen4ExpTextRotaryEmbedding"),
    "cohere_compass": ("CohereCompassVisionModel", None),
}
TAPS = {
    "bilinear": "get_vision_bilinear_indices_and_weights",
    "closed": "get_vision_interpolation_indices_and_weights",
}


@dataclass(frozen=True)
class Family:
    """One model: its module, its tower, its text rotary embedding and the generation of its tower."""

    module: ModuleType
    tower: type
    text_rotary: type | None
    generation: str
    version: tuple[int, int]


def families() -> tuple[Family, ...]:
    """Every known model of the installed transformers. Imports transformers; raises ImportError where it is missing."""
    import transformers

    version = release(transformers.__version__)
    if not OLDEST <= version < BEYOND:
        logger.warning(
            "patches: expected transformers %s to 5.x, got %s. Left alone: nothing is patched.",
            ".".join(map(str, OLDEST)), transformers.__version__,
        )  # fmt: skip
        return ()
    return tuple(_found(version))


def release(version: str) -> tuple[int, int]:
    """ "5.24.0.dev0" -> (5, 24). Raises ValueError for what is no version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def generation(module: ModuleType, tower: type) -> str | None:
    """Which generation a tower is of; None when its shape is unknown."""
    for name, function in reversed(TAPS.items()):
        if hasattr(module, function):
            return name if hasattr(module, "get_vision_position_ids") else None
    return "method" if "fast_pos_embed_interpolate" in vars(tower) else None


def _found(version: tuple[int, int]) -> Iterator[Family]:
    for name, (tower_name, rotary_name) in CLASSES.items():
        module = _module(name)
        if module is None:
            continue
        tower, rotary = (_class(module, wanted) for wanted in (tower_name, rotary_name))
        kind = generation(module, tower) if tower else None
        if tower and kind and (rotary or rotary_name is None):
            yield Family(module, tower, rotary, kind, version)
        else:
            names = " and ".join(wanted for wanted in (tower_name, rotary_name) if wanted)
            logger.warning(
                "patches: expected a known shape of %s in %s, got another. Left alone: they stay as they are.",
                names, module.__name__,
            )  # fmt: skip


def _class(module: ModuleType, name: str | None) -> type | None:
    """The class of that name, if it has a forward of its own."""
    found = getattr(module, name, None) if name else None
    return found if isinstance(found, type) and "forward" in vars(found) else None


def _module(name: str) -> ModuleType | None:
    full = f"transformers.models.{name}.modeling_{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if not full.startswith(error.name or "?"):
            logger.warning("patches: expected to import %s, got %s. Left alone: it stays as it is.", full, error)
        return None
