"""The tensors of a checkpoint by released name, gathered from the headers of the files that hold needed ones.

Contract: `open_catalog(path, tap_layer, vision=None)`. `path` is a single .safetensors or .gguf file, the official
text_encoder folder, or a parent that holds `text_encoder/`, `FL2VA/text_encoder/` or `Ref2VA/text_encoder/`; `vision`
is the second file of a GGUF whose vision part lies apart. Shards that hold nothing needed are not opened, not even
their headers. Missing shards and broken files are ValueErrors before any tensor is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..weights import is_unneeded
from .config_file import config_beside, config_in, own_config, read_json
from .header import Header, TensorEntry, read_header
from .names import find_layout, released_name
from .wording import has_control, parts_in_words, printable

INDEX = "model.safetensors.index.json"
SUBFOLDERS = ("text_encoder", "FL2VA/text_encoder", "Ref2VA/text_encoder")
DEMO_KEY = "h3te_demo"


@dataclass(frozen=True)
class Catalog:
    """Everything the headers tell. `entries`: released name -> TensorEntry of the files that were looked into."""

    path: Path
    layout: str
    entries: Mapping[str, TensorEntry]
    config: Mapping[str, Any] | None  # config.json beside the weights, or the header's own
    metadata: Mapping[str, str]
    files_needed: tuple[Path, ...]
    files_unneeded: tuple[Path, ...] = ()
    index_names: frozenset[str] = field(default_factory=frozenset)
    vision_hint: str = ""  # which file to add, where the vision part lies in a file that is not there

    @property
    def name(self) -> str:
        """Of the file or folder, for messages."""
        return printable(self.path.name)

    @property
    def is_gguf(self) -> bool:
        return self.layout.startswith("gguf")

    @property
    def is_demo(self) -> bool:
        """True when the checkpoint says of itself that its weights are for demonstration."""
        return bool((self.config or {}).get(DEMO_KEY)) or bool(self.metadata.get(DEMO_KEY))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the matrices, however they are stored."""
        return whole_shapes(self.entries)


def whole_shapes(entries: Mapping[str, TensorEntry]) -> dict[str, tuple[int, ...]]:
    """{name: shape}; a patch embedding in two slices along its time axis has five axes again."""
    shapes = {name: entry.shape for name, entry in entries.items()}
    for name in [name for name, shape in shapes.items() if name + ".1" in shapes and len(shape) == 4]:
        shapes[name] = (*shapes[name][:2], 2, *shapes[name][2:])
    return shapes


def open_catalog(path: str | Path, tap_layer: int, vision: str | Path | None = None) -> Catalog:
    """Gather the headers. Raises ValueError or OSError (FileNotFoundError among them) with what was expected and what
    to do; RuntimeError for a GGUF file without the `gguf` package."""
    path = Path(path)
    try:
        return _open(path, tap_layer, Path(vision) if vision else None)
    except ValueError as error:
        if not has_control(str(error)):
            raise
        raise ValueError(printable(str(error))) from error  # a file's name, or one in it
    except OSError as error:
        if error.errno is None:  # raised here, with its explanation
            raise type(error)(printable(str(error))) from error
        raise type(error)(
            f"checkpoint: expected to read {printable(str(error.filename or path))}, got {error.strerror}. Check the "
            "path, and that you may read what lies there."
        ) from error


def _open(path: Path, tap_layer: int, vision: Path | None) -> Catalog:
    if path.is_file() and path.suffix.lower() == ".gguf":
        from .gguf_catalog import open_gguf  # it builds on this module

        return open_gguf(path, vision)
    if vision is not None:
        raise ValueError(
            f"{path.name}: expected a vision file for .gguf files alone, got {vision.name}. Leave the option empty."
        )
    if path.is_dir():
        folder = resolve_folder(path)
        return _open_index(folder, tap_layer) if (folder / INDEX).exists() else _open_lone(folder)
    if not path.exists():
        raise FileNotFoundError(f"checkpoint: expected a file or folder at {path}, got none. Check the path.")
    return _open_single(path)


def resolve_folder(path: Path) -> Path:
    """The folder that holds the weights: `path` itself or one of its released subfolders. Raises FileNotFoundError."""
    for candidate in (path, *(path / sub for sub in SUBFOLDERS)):
        if (candidate / INDEX).exists() or any(candidate.glob("*.safetensors")):
            return candidate
    raise FileNotFoundError(
        f"checkpoint: expected {INDEX} or a .safetensors file in {path} or its {', '.join(SUBFOLDERS)}, got none. "
        "Point to the released text_encoder folder or to its parent."
    )


def _open_lone(folder: Path) -> Catalog:
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"checkpoint: expected {INDEX} beside {len(files)} .safetensors files in {folder}, got none. "
            "Download the index file too, or point to one single file."
        )
    return _open_single(files[0])


def _open_single(path: Path) -> Catalog:
    header = read_header(path)
    check_whole(path)
    layout = find_layout(header.tensors)
    entries = _renamed(header.tensors.values(), layout)
    config = config_in(header) or config_beside(path, whole_shapes(entries))
    return Catalog(path, layout, entries, config, header.metadata, (path,))


def check_whole(path: Path) -> None:
    """One shard of several is not a checkpoint: people pick it in a file list."""
    shard = re.search(r"-\d+-of-(\d+)\.safetensors$", path.name)
    if shard and int(shard.group(1)) > 1:
        raise ValueError(
            f"{path.name}: expected a whole checkpoint, got one of {int(shard.group(1))} shards. "
            f"Point to the folder that holds them all and {INDEX}."
        )


def _open_index(folder: Path, tap_layer: int) -> Catalog:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{INDEX}: expected a weight_map, got none. Download the index file again.")
    layout = find_layout(weight_map)
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if _inside(file) and not is_unneeded(released_name(name, layout), tap_layer):
            files.setdefault(file, []).append(name)
    _check_present(folder, files)
    needed = tuple(folder / file for file in sorted(files))
    headers = [read_header(file) for file in needed]
    _check_indexed(files, headers)
    unneeded = tuple(folder / file for file in sorted({*weight_map.values()} - files.keys()))
    entries = _renamed((e for header in headers for e in _placed(header, weight_map)), layout)
    names = frozenset(released_name(name, layout) for name in weight_map)
    return Catalog(folder, layout, entries, own_config(folder), {}, needed, unneeded, names)


def _placed(header: Header, weight_map: Mapping[str, str]) -> Iterator[TensorEntry]:
    """Tensors of a shard without stray copies of what the index places in another."""
    for name, entry in header.tensors.items():
        if weight_map.get(name, entry.file.name) == entry.file.name:
            yield entry


def _inside(file: object) -> str:
    if not isinstance(file, str) or Path(file).name != file or file in ("", ".", "..") or has_control(file):
        raise ValueError(
            f"{INDEX}: expected plain file names in weight_map, got {file!r}. Download the index file again from "
            "its source."
        )
    return file


def _check_present(folder: Path, files: Mapping[str, list[str]]) -> None:
    absent = {file: names for file, names in files.items() if not (folder / file).exists()}
    if absent:
        listed = "; ".join(
            f"{file} ({len(names)} needed tensors of {parts_in_words(names)})" for file, names in sorted(absent.items())
        )
        raise FileNotFoundError(
            f"checkpoint: expected {len(files)} needed shards in {folder}, got {len(files) - len(absent)}; missing: "
            f"{listed}. Download the missing shards into that folder."
        )


def _check_indexed(files: Mapping[str, list[str]], headers: list[Header]) -> None:
    for (file, names), header in zip(sorted(files.items()), headers, strict=True):
        lost = sorted(set(names) - header.tensors.keys())
        if lost:
            raise ValueError(
                f"{file}: expected the {len(names)} tensors that {INDEX} names, got {len(names) - len(lost)}; "
                f"missing: {', '.join(lost[:5])}. The shard and the index belong to different downloads."
            )


def _renamed(tensors: Iterable[TensorEntry], layout: str) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    for entry in tensors:
        name = released_name(entry.stored_name, layout)
        other = entries.setdefault(name, entry)
        if other is not entry:
            raise ValueError(
                f"{entry.file.name}: expected one tensor {name}, got two: {other.stored_name} of {other.file.name} and "
                f"{entry.stored_name} of {entry.file.name}. Nothing says which is right: download the files again."
            )
    return entries
