"""How a checkpoint announces packed weights: markers beside them, header metadata, the older `scaled_fp8`.

Contract: `read_markers(catalog, layers)` -> ({released layer name: Marker}, problems). Of the data, only the tiny
marker tensors of `layers` are read. In order, first that speaks: `<layer>.comfy_quant` (U8, JSON), header
metadata `_quantization_metadata` (JSON `{"layers": {<layer>: {...}}}`), a tensor `scaled_fp8`. Options may be nested
under `params`. Source: ComfyUI's quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .catalog import Catalog
from .header import TensorEntry
from .names import released_name
from .plain_json import MOST_BYTES, parsed

MARKER = ".comfy_quant"
METADATA = "_quantization_metadata"
LEGACY = "scaled_fp8"
GROUP = 256  # columns rotated together where a marker does not say
_MOST_BYTES = 65_536  # a marker is a line of text
_FP8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


@dataclass(frozen=True)
class Marker:
    """One layer's announcement. `group`: columns rotated together, 0 for none; `legacy`: older names of scales."""

    format: str
    group: int = 0
    legacy: bool = False


UNREADABLE = Marker("")  # something stands in a marker's place that says nothing


def read_markers(catalog: Catalog, layers: Collection[str]) -> tuple[dict[str, Marker], list[str]]:
    """Markers of these released layer names; layers without one are absent. Raises OSError when a file is gone."""
    beside = {layer: e for layer in layers if (e := catalog.entries.get(layer + MARKER)) is not None}
    found = {layer: _marker_in(text) for layer, text in _texts(beside)}
    if METADATA not in catalog.metadata or catalog.is_gguf:
        return _from_legacy(catalog, layers) | found, []
    announced, problems = _from_metadata(catalog, layers)
    return {layer: _marker(options) for layer, options in announced.items()} | found, problems


def _texts(entries: Mapping[str, TensorEntry]) -> Iterator[tuple[str, bytes]]:
    """What the marker tensors hold; b"" for one that is no marker. Each file is opened once."""
    by_file: dict[Path, list[str]] = {}
    for layer, entry in entries.items():
        by_file.setdefault(entry.file, []).append(layer)
    for path, layers in by_file.items():
        with path.open("rb", buffering=0) as file:
            for layer in layers:
                entry = entries[layer]
                file.seek(entry.offset)
                tiny = entry.dtype in ("U8", "I8") and entry.nbytes <= _MOST_BYTES
                yield layer, file.read(entry.nbytes) if tiny else b""


def _json(text: bytes | str) -> object:
    try:
        return parsed(text) if len(text) <= MOST_BYTES else None
    except ValueError:
        return None


@lru_cache(maxsize=64)
def _marker_in(text: bytes) -> Marker:
    """Hundreds of layers say the same."""
    return _marker(_json(text))


def _marker(options: object) -> Marker:
    if not isinstance(options, dict):
        return UNREADABLE
    nested = options.get("params")
    options = {**nested, **options} if isinstance(nested, dict) else options
    name, group = options.get("format"), options.get("convrot_groupsize", GROUP)
    rotated = options.get("convrot", False)
    if not isinstance(name, str) or not isinstance(rotated, (bool, int)) or type(group) is not int or group < 1:
        return UNREADABLE
    return Marker(name, group if rotated else 0)


def _from_metadata(catalog: Catalog, layers: Collection[str]) -> tuple[dict[str, object], list[str]]:
    """({released layer name: options}, problems)."""
    text = catalog.metadata[METADATA]
    value = _json(text) if isinstance(text, str) else text
    listed = value.get("layers") if isinstance(value, dict) else None
    if not isinstance(listed, dict):
        return {}, [
            f"{catalog.name}: expected JSON with layers in the header's {METADATA}, got {str(text)[:60]!r}. "
            "Download the file again, or use another one."
        ]
    renamed = {released_name(f"{layer}.", catalog.layout)[:-1]: options for layer, options in listed.items()}
    return {layer: options for layer, options in renamed.items() if layer in layers}, []


def _from_legacy(catalog: Catalog, layers: Collection[str]) -> dict[str, Marker]:
    """Every fp8 weight of a file with a `scaled_fp8` tensor."""
    if not any(name == LEGACY or name.endswith("." + LEGACY) for name in catalog.entries):
        return {}
    types = {layer: e.dtype for layer in layers if (e := catalog.entries.get(layer + ".weight")) is not None}
    return {layer: Marker(_FP8[dtype], legacy=True) for layer, dtype in types.items() if dtype in _FP8}
