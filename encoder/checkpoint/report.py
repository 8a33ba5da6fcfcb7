"""The checkpoint doctor: what a file or folder is, told from its headers, and what to do when it does not fit.

Contract: `inspect_checkpoint(path)` never reads a tensor and never raises for a bad checkpoint: `problems` says what is
wrong, each with what to do. "Is this MiniMax H3's encoder" is judged here; `load_encoder` only checks self-consistency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..config import EncoderConfig
from ..model import HIDDEN_SIZE, SELECTED_LAYER
from ..tokens import find_tokenizer_folder
from ..weights import EMBED_TOKENS, is_unneeded
from .catalog import Catalog, open_catalog
from .fit import check_fit, needed_shapes
from .formats import find_format, format_problem

VISION_TENSORS = 351
_SIBLINGS = {2048: "Qwen3-VL-2B", 2560: "Qwen3-VL-4B", 4096: "Qwen3-VL-8B"}
_USE = "Use a qwen3vl_32b_minimax_h3 file or the released text_encoder folder."
_FOREIGN_MARKS = (
    (".linear_attn.", "Qwen3.5"),
    (".mlp.experts.", "a mixture-of-experts model"),
    ("q_proj.bias", "Qwen2 or Qwen2.5"),
)


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint is. `format` is that of the decoder's linears; bytes are of tensors; `problems` empty when
    usable."""

    path: Path
    layout: str | None
    format: str | None
    layers: int
    hidden_size: int
    has_vision: bool
    is_demo: bool
    is_h3: bool
    bytes_needed: int
    files_needed: tuple[Path, ...]
    files_unneeded: tuple[Path, ...]
    config: EncoderConfig | None
    tokenizer: Path | None
    problems: tuple[str, ...]

    def describe(self) -> str:
        """One line for a node or a log."""
        parts = [self.format or "unknown format", f"{self.layers} layers", f"{self.hidden_size} wide"]
        parts.append("vision tower" if self.has_vision else "no vision tower")
        parts.append(f"{self.bytes_needed / 1e9:.2f} GB needed")
        warning = "demo weights: output is meaningless; " if self.is_demo else ""  # first: a node shows two lines
        return warning + ", ".join(parts)


def inspect_checkpoint(path: str | Path, tap_layer: int = SELECTED_LAYER) -> CheckpointReport:
    """Report on a file or folder from headers only. Nothing that a file can hold makes this raise: see `problems`."""
    try:
        return _report(open_catalog(path, tap_layer), tap_layer)
    except (ValueError, OSError) as error:
        return _unreadable(Path(path), str(error))


def _report(catalog: Catalog, tap_layer: int) -> CheckpointReport:
    problems = find_problems(catalog, tap_layer)
    needed = [entry for name, entry in catalog.entries.items() if not is_unneeded(name, tap_layer)]
    return CheckpointReport(
        path=catalog.path,
        layout=catalog.layout,
        format=find_format(catalog),
        layers=count_layers(catalog),
        hidden_size=_width(catalog),
        has_vision=any(name.startswith("model.visual.") for name in catalog.entries),
        is_demo=catalog.is_demo,
        is_h3=not problems,
        bytes_needed=sum(entry.nbytes for entry in needed),
        files_needed=catalog.files_needed,
        files_unneeded=catalog.files_unneeded,
        config=None if problems else read_dimensions(catalog),
        tokenizer=find_tokenizer_folder(catalog.path),
        problems=tuple(problems),
    )


def _unreadable(path: Path, problem: str) -> CheckpointReport:
    return CheckpointReport(path, None, None, 0, 0, False, False, False, 0, (), (), None, None, (problem,))


def read_dimensions(catalog: Catalog) -> EncoderConfig:
    """The config beside the weights where there is one, else what the shapes tell."""
    if catalog.config is None:
        return EncoderConfig.from_shapes(catalog.shapes)
    config = EncoderConfig.from_dict(catalog.config)
    if config.vision is not None and not any(name.startswith("model.visual.") for name in catalog.entries):
        return EncoderConfig(config.text, None)
    return config


def count_layers(catalog: Catalog) -> int:
    """Decoder layers that the checkpoint holds, those that its index names in unopened shards included."""
    prefix = "model.language_model.layers."
    names = catalog.index_names or catalog.entries.keys()
    found = {name[len(prefix) :].split(".", 1)[0] for name in names if name.startswith(prefix)}
    return len({int(layer) for layer in found if layer.isdecimal()})


def find_problems(catalog: Catalog, tap_layer: int) -> list[str]:
    """Everything that keeps this checkpoint from being MiniMax H3's encoder, each with what to do: first what
    `load_encoder` refuses, then what makes it another model."""
    refused = (foreign_problem(catalog), format_problem(catalog), depth_problem(catalog, tap_layer))
    loading = [problem for problem in refused if problem] or _misfits(catalog, tap_layer)
    identity = (_width_problem(catalog), _vision_problem(catalog))
    return [*loading, *(problem for problem in identity if problem)]


def _misfits(catalog: Catalog, tap_layer: int) -> list[str]:
    """Config and tensors that disagree, and tensors that are missing: loading refuses those too."""
    try:
        check_fit(catalog, needed_shapes(read_dimensions(catalog), tap_layer), tap_layer)
    except ValueError as error:
        return [str(error)]
    return []


def foreign_problem(catalog: Catalog) -> str | None:
    """Another model, told by tensors that only it has."""
    for mark, model in _FOREIGN_MARKS:
        if any(mark in name for name in catalog.entries):
            return f"{catalog.path.name}: expected Qwen3-VL-32B, got {model} (a tensor named *{mark}*). {_USE}"
    return None


def depth_problem(catalog: Catalog, tap_layer: int) -> str | None:
    """Fewer decoder layers than the tap needs."""
    layers = count_layers(catalog)
    if layers >= tap_layer:
        return None
    return f"{catalog.path.name}: expected at least {tap_layer} decoder layers, got {layers}{_sibling(catalog)}. {_USE}"


def _width(catalog: Catalog) -> int:
    embedding = catalog.shapes.get(EMBED_TOKENS, ())
    return embedding[-1] if embedding else 0


def _width_problem(catalog: Catalog) -> str | None:
    width = _width(catalog)
    if width == HIDDEN_SIZE or catalog.is_demo:
        return None
    return f"{catalog.path.name}: expected hidden width {HIDDEN_SIZE}, got {width}{_sibling(catalog)}. {_USE}"


def _sibling(catalog: Catalog) -> str:
    width = _width(catalog)
    return f" (this is {_SIBLINGS[width]})" if width in _SIBLINGS else ""


def _vision_problem(catalog: Catalog) -> str | None:
    count = sum(name.startswith("model.visual.") for name in catalog.entries)
    if count == 0:
        if _says_qwen3vl(catalog):
            return None  # serves text; pictures are refused when they come
        return (
            f"{catalog.path.name}: expected a vision tower (visual.*) or a qwen3vl name, got neither: "
            f"this looks like the text-only Qwen3-32B. {_USE}"
        )
    if count < VISION_TENSORS:
        return (
            f"{catalog.path.name}: expected {VISION_TENSORS} vision tensors, got {count}: the vision tower is "
            "incomplete. Download the file again."
        )
    return None


def _says_qwen3vl(catalog: Catalog) -> bool:
    config: Mapping = catalog.config or {}
    name = str(catalog.path.name).lower().replace("-", "").replace("_", "")
    return "qwen3_vl" in str(config.get("model_type", "")) or "qwen3vl" in name
