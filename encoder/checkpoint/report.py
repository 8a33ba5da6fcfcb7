"""The checkpoint doctor: what a file or folder is, told from its headers, and what to do when it does not fit.

Contract: `inspect_checkpoint(path)` reads headers and the tiny markers of packed layers, and never raises for a bad
checkpoint: `problems` says what is wrong, each with what to do; `notes` what is good to know. "Is this MiniMax H3's
encoder" is judged here; `load_encoder` only checks self-consistency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config import EncoderConfig
from ..tap import SELECTED_LAYER, check_tap
from ..tokens import find_tokenizer_folder
from ..weights import EMBED_TOKENS, is_unneeded
from .catalog import Catalog, open_catalog
from .fit import needed_shapes
from .formats import Resolution, resolve
from .identity import depth_problem, foreign_problem, has_vision, layer_numbers, vision_problem, width, width_problem
from .notes import awq_folded, find_notes, format_line
from .volume import bytes_in_files, bytes_unread
from .wording import printable

__all__ = ["CheckpointReport", "depth_problem", "foreign_problem", "inspect_checkpoint", "read_dimensions"]
_LINEARS = (".mlp.", ".self_attn.")


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint is. Bytes are of tensors; `problems` is empty when it is usable;
    they and `notes` hold nothing that a terminal would obey, whatever names a file has.

    format: one line about the decoder's linears and the token table; linear_formats: {released name: format} of each of
    the 7 linears of each needed layer; formats: how many of each. bytes_unread: what lies in the files present and is
    never read. awq_folded: AWQ's scale of q, k, v, gate and up is part of the norms, which fit no other file.
    """

    path: Path
    layout: str | None = None
    format: str | None = None
    layers: int = 0
    hidden_size: int = 0
    has_vision: bool = False
    is_demo: bool = False
    is_h3: bool = False
    bytes_needed: int = 0
    files_needed: tuple[Path, ...] = ()
    files_unneeded: tuple[Path, ...] = ()
    config: EncoderConfig | None = None
    tokenizer: Path | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    linear_formats: Mapping[str, str] = field(default_factory=dict)
    embedding_format: str | None = None
    awq_folded: bool = False
    bytes_unread: int = 0
    bytes_in_files: int = 0

    @property
    def formats(self) -> Counter[str]:
        return Counter(self.linear_formats.values())

    def describe(self) -> str:
        """One line for a node or a log."""
        parts = [self.format or "unknown format", f"{self.layers} layers", f"{self.hidden_size} wide"]
        parts.append("vision tower" if self.has_vision else "no vision tower")
        parts.append(f"{self.bytes_needed / 1e9:.2f} GB needed")
        warning = "demo weights: output is meaningless; " if self.is_demo else ""  # first: a node shows two lines
        return warning + ", ".join(parts)


def inspect_checkpoint(
    path: str | Path, tap_layer: int = SELECTED_LAYER, vision: str | Path | None = None
) -> CheckpointReport:
    """Report on a file or folder; `vision`: the second file of a GGUF. Nothing that a file can hold makes this raise:
    see `problems`."""
    try:
        return _report(open_catalog(path, tap_layer, vision), tap_layer)
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: a GGUF without the package that reads it
        return CheckpointReport(Path(path), problems=(printable(str(error)),))


def _report(catalog: Catalog, tap_layer: int) -> CheckpointReport:
    config, resolution, misfits = _resolved(catalog, tap_layer)
    problems = tuple(map(printable, _problems(catalog, tap_layer, misfits)))
    linears = {name: label for name, label in resolution.formats.items() if _is_linear(name)}
    embedding = resolution.formats.get(EMBED_TOKENS)
    folded = awq_folded(resolution.weights)
    needed = _needed_bytes(catalog, resolution, tap_layer, not problems)
    return CheckpointReport(
        path=catalog.path,
        layout=catalog.layout,
        format=format_line(linears, embedding, resolution.weights),
        layers=len(layer_numbers(catalog)),
        hidden_size=width(catalog),
        has_vision=has_vision(catalog),
        is_demo=catalog.is_demo,
        is_h3=not problems,
        bytes_needed=needed,
        files_needed=catalog.files_needed,
        files_unneeded=catalog.files_unneeded,
        config=None if problems else config,
        tokenizer=find_tokenizer_folder(catalog.path),
        problems=problems,
        notes=tuple(map(printable, find_notes(catalog, linears, config, folded, not problems))),
        linear_formats=linears,
        embedding_format=embedding,
        awq_folded=folded,
        bytes_unread=bytes_unread(catalog, needed),
        bytes_in_files=bytes_in_files(catalog),
    )


def _resolved(catalog: Catalog, tap_layer: int) -> tuple[EncoderConfig | None, Resolution, tuple[str, ...]]:
    """(config, formats of what is there, problems that loading would meet). A model of fewer layers is resolved too."""
    resolution = Resolution({}, (), {})
    try:
        config = read_dimensions(catalog)
        resolution = resolve(catalog, needed_shapes(config, min(tap_layer, config.text.num_hidden_layers)))
        check_tap(tap_layer, config.text.num_hidden_layers)
    except ValueError as error:
        return None, resolution, (str(error),)
    return config, resolution, resolution.problems


def read_dimensions(catalog: Catalog) -> EncoderConfig:
    """The config beside the weights where there is one, else what the shapes tell."""
    if catalog.config is None:
        return EncoderConfig.from_shapes(catalog.shapes)
    config = EncoderConfig.from_dict(catalog.config)
    if config.vision is not None and not has_vision(catalog):
        return EncoderConfig(config.text, None)
    return config


def _problems(catalog: Catalog, tap_layer: int, misfits: tuple[str, ...]) -> tuple[str, ...]:
    """Everything that keeps this checkpoint from being MiniMax H3's encoder, each with what to do: first what
    `load_encoder` refuses, then what makes it another model."""
    refused = (foreign_problem(catalog), depth_problem(catalog, tap_layer))
    loading = [problem for problem in refused if problem] or misfits
    identity = (width_problem(catalog), vision_problem(catalog))
    return (*loading, *(problem for problem in identity if problem))


def _is_linear(name: str) -> bool:
    return name.startswith("model.language_model.") and name.endswith("_proj.weight")


def _needed_bytes(catalog: Catalog, resolution: Resolution, tap_layer: int, usable: bool) -> int:
    """Of the needed weights with their scales; of a file with problems, of everything that is not known to be
    unneeded."""
    if usable:
        return sum(stored.nbytes for stored in resolution.weights.values())
    return sum(entry.nbytes for name, entry in catalog.entries.items() if not is_unneeded(name, tap_layer))
