"""Write checkpoints in the packed formats that people have, from weights in the official layout.

    python scripts/packed_files.py FOLDER FILE.safetensors --kind nvfp4_awq
    python scripts/packed_files.py FOLDER TARGET_FOLDER --kind hf_block_fp8

FOLDER: config.json and shards under the released names. Single files hold the layers below the tap and neither the
final norm nor lm_head; hf_block_fp8 is a folder with everything. Names, types, shapes and markers are those of the real
files, to the byte (packed_kinds.py); the same source gives the same bytes. The header is written first, its shapes
planned on meta tensors, then one weight at a time: the memory needed is that of the largest weight.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from packed_kinds import KINDS, LINEAR, Kind, header_metadata, marks, stored_tensors
from quantise import HF_BLOCK
from safetensors import safe_open

INDEX = "model.safetensors.index.json"
RELEASED_WIDTH = 5120  # a file of this width needs no config: its shapes tell the rest
_SMALL_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json", "generation_config.json")
_SPELLING = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_DTYPES = {spelling: dtype for dtype, spelling in _SPELLING.items()}
Getter = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Source:
    """`likes`: released name -> meta tensor; `read(name)`: the tensor itself."""

    likes: Mapping[str, torch.Tensor]
    read: Callable[[str], torch.Tensor]
    config: dict | None = None
    folder: Path | None = None


def write_packed(
    source: Path | Mapping[str, torch.Tensor | Getter] | Iterable[tuple[str, torch.Tensor | Getter]] | Source,
    target: Path,
    kind: str,
    *,
    tap: int = 50,
    config: dict | None = None,
) -> Path:
    """Write `source` as the packed checkpoint `target` of `kind`, one of KINDS, and return `target`.

    `source`: a folder in the official layout, or released names with tensors or with functions that return them (called
    twice: once for the shape). `tap`: layers from this one on are left out of single files. `config`: config.json's
    dict, where `source` has none; single files carry it only when its width is not the released one.
    Raises ValueError for another kind, a source without decoder layers, or a target folder that holds files.
    """
    if kind not in KINDS:
        raise ValueError(f"packed_files: expected one of {', '.join(KINDS)}, got {kind!r}. Choose one of these.")
    opened = source if isinstance(source, Source) else _open_folder(source) if _is_path(source) else _open_pairs(source)
    if not any(LINEAR.match(name) for name in opened.likes):
        got = ", ".join(list(opened.likes)[:3]) or "nothing"
        raise ValueError(
            f"packed_files: expected tensors model.language_model.layers.*, got {got}. "
            "Give a checkpoint in the official layout."
        )
    config = config or opened.config
    target = Path(target)
    if KINDS[kind].whole:
        return _write_folder(opened, target, KINDS[kind], config)
    names = [name for name in opened.likes if is_stored(KINDS[kind], name, tap)]
    metadata = {**_config_metadata(config, names), **header_metadata(KINDS[kind], names)}
    return _write_file(opened, target, KINDS[kind], names, metadata)


def planned(source: Source, kind: str, tap: int = 50) -> dict[str, torch.Tensor]:
    """The tensors of a single file by their names in it, on the meta device."""
    names = [name for name in source.likes if is_stored(KINDS[kind], name, tap)]
    return _plan(source, KINDS[kind], names)


def is_stored(kind: Kind, name: str, tap: int) -> bool:
    """Whether a file of `kind` holds the released tensor `name`."""
    if name.startswith("model.visual."):
        return kind.vision
    layer = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
    in_file = int(layer.group(1)) < tap if layer else name.endswith(".embed_tokens.weight")
    return kind.whole or in_file


def _is_path(source: object) -> bool:
    return isinstance(source, (str, Path))


def _open_folder(folder: str | Path) -> Source:
    files: dict[str, Path] = {}
    likes = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                part = opened.get_slice(name)
                likes[name] = torch.empty(part.get_shape(), dtype=_DTYPES[part.get_dtype()], device="meta")
                files[name] = file

    def read(name: str) -> torch.Tensor:
        with safe_open(files[name], "pt") as opened:
            return opened.get_tensor(name)

    config = Path(folder) / "config.json"
    return Source(likes, read, json.loads(config.read_text()) if config.is_file() else None, Path(folder))


def _open_pairs(source: Mapping | Iterable) -> Source:
    weights = dict(source)

    def read(name: str) -> torch.Tensor:
        weight = weights[name]
        return weight if isinstance(weight, torch.Tensor) else weight()

    return Source({name: read(name).to("meta") for name in weights}, read)


def _config_metadata(config: dict | None, names: list[str]) -> dict[str, str]:
    """The config of the layers that are in the file, and the demo mark, for widths that shapes cannot explain."""
    if config is None or config["text_config"]["hidden_size"] == RELEASED_WIDTH:
        return {}
    layers = {int(found.group(1)) for name in names if (found := re.search(r"language_model\.layers\.(\d+)\.", name))}
    text = {**config["text_config"], "num_hidden_layers": len(layers)}
    mark = {"h3te_demo": "true", "h3te_demo_note": config["h3te_demo_note"]} if config.get("h3te_demo") else {}
    return {"format": "pt", **mark, "config": json.dumps({**config, "text_config": text})}


def _plan(source: Source, kind: Kind, names: list[str]) -> dict[str, torch.Tensor]:
    plan = dict(marks(kind))
    for name in names:
        plan |= stored_tensors(kind, name, source.likes[name])
    return plan


def _write_file(source: Source, target: Path, kind: Kind, names: list[str], metadata: dict[str, str]) -> Path:
    header, offsets = _header(_plan(source, kind, names), metadata)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(header)
            _write_tensors(file, offsets, marks(kind))
            for name in names:
                _write_tensors(file, offsets, stored_tensors(kind, name, source.read(name)))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _header(plan: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> tuple[bytes, dict[str, int]]:
    """(length prefix and JSON, {name: where in the file it begins}). Wide types first, as safetensors aligns them."""
    header: dict = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, tensor in sorted(plan.items(), key=lambda item: (-item[1].element_size(), item[0])):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _SPELLING[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header.pop("__metadata__", None)
    offsets = {name: 8 + len(text) + entry["data_offsets"][0] for name, entry in header.items()}
    return len(text).to_bytes(8, "little") + text, offsets


def _write_tensors(file, offsets: Mapping[str, int], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        file.seek(offsets[name])
        file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def _write_folder(source: Source, target: Path, kind: Kind, config: dict | None) -> Path:
    """Two shards, their index and config.json with `quantization_config`; tokenizer files if the source has them."""
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"packed_files: expected no folder or an empty one, got files in {target}. Choose another.")
    parts = {"model-00001-of-00002.safetensors": True, "model-00002-of-00002.safetensors": False}
    weight_map = {}
    for file, in_layers in parts.items():
        names = [name for name in source.likes if (".layers." in name) == in_layers]
        _write_file(source, target / file, kind, names, {"format": "pt"})
        weight_map |= dict.fromkeys(_plan(source, kind, names), file)
    quantised = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    settings = {**(config or {}), "quantization_config": {**quantised, "weight_block_size": [HF_BLOCK, HF_BLOCK]}}
    _write_json(target / "config.json", settings)
    _write_json(target / INDEX, {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))})
    for name in _SMALL_FILES:
        if source.folder is not None and (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, target / name)
    return target


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder in the official layout")
    parser.add_argument("target", type=Path, help="file to write, a folder for hf_block_fp8")
    parser.add_argument("--kind", required=True, choices=KINDS)
    parser.add_argument("--tap", type=int, default=50, help="layers from this one on are left out (default 50)")
    options = parser.parse_args(arguments)
    try:
        written = write_packed(options.source, options.target, options.kind, tap=options.tap)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.kind} checkpoint written: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
